"""What every table says of the trial that a row is of."""

from dataclasses import dataclass

from zerobench.common.vocabulary import Status
from zerobench.config.trial.trial import Evidence


@dataclass(frozen=True, slots=True)
class TrialName:
    """Which trial, how its figures came to be, and whether they are to be believed."""

    trial_id: str
    label: str
    evidence: str
    gpu: str | None
    status: str = Status.COMPLETED.value
    is_believed: bool = True
    """Whether its losses and gradients do not speak against it."""

    @property
    def evidence_text(self) -> str:
        """`measured`, `predicted (solo)`, `predicted (simulated on H200 SXM)`."""
        gpu = f" on {self.gpu}" if self.gpu else ""
        return f"predicted ({self.evidence}{gpu})" if self.is_predicted else self.evidence

    @property
    def is_predicted(self) -> bool:
        """Whether its figures were not seen on real ranks."""
        return self.evidence != Evidence.MEASURED.value

    @property
    def kind(self) -> str:
        """How its rows are marked on the page besides their words: what speaks most against reading on."""
        if not self.is_believed:
            return "doubted"
        if self.status == Status.SKIPPED.value:
            return "skipped"
        if self.status != Status.COMPLETED.value:
            return "failed"
        return "predicted" if self.is_predicted else ""
