"""Name of a row's trial, the same in every table."""

from dataclasses import dataclass

from zerobench.common.vocabulary import Status
from zerobench.config.trial.trial import Evidence


@dataclass(frozen=True, slots=True)
class TrialName:
    """Name of a trial, with its evidence and whether its figures are to be believed."""

    trial_id: str
    label: str
    evidence: str
    gpu: str | None
    status: str = Status.COMPLETED.value
    is_believed: bool = True
    """False if its losses or gradients differ from its reference's."""

    @property
    def evidence_text(self) -> str:
        """`measured`, `predicted (solo)`, `predicted (simulated on H200 SXM)`."""
        gpu = f" on {self.gpu}" if self.gpu else ""
        return f"predicted ({self.evidence}{gpu})" if self.is_predicted else self.evidence

    @property
    def is_predicted(self) -> bool:
        """True if its figures were not seen on real ranks."""
        return self.evidence != Evidence.MEASURED.value

    @property
    def kind(self) -> str:
        """Mark of its rows on the page besides their words: the strongest reason not to read on."""
        if not self.is_believed:
            return "doubted"
        if self.status == Status.SKIPPED.value:
            return "skipped"
        if self.status != Status.COMPLETED.value:
            return "failed"
        return "predicted" if self.is_predicted else ""
