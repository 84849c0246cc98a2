"""What collectives move in a step, by kind: bytes, and the paper's unit.

The paper (arXiv 1910.02054, section 7) counts elements: with Psi parameters a reduce-scatter or an all-gather of all of
them moves Psi, an all-reduce, being one of each, 2 Psi. It gives 2 Psi for stages 0 to 2 and 3 Psi for stage 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zerobench.common.vocabulary import Phase, StepKind
from zerobench.config.trial.trial import Precision, TrialSpec
from zerobench.records.records import CollectiveTraffic, RankRecord

_PAPER_TIMES = {"all_reduce": 2}


@dataclass(frozen=True)
class KindTraffic:
    """One kind of collective in groups of one size and spread over a whole optimizer step, as one rank calls it."""

    kind: str
    group_size: int
    calls: int
    message_bytes: int
    message_psi: float | None
    """Elements of the messages over the model's parameters; None where these are not known."""
    num_nodes: int | None = None
    """Nodes that the group lies on; None where its record does not say."""

    @property
    def volume_psi(self) -> float | None:
        """Data volume in the paper's unit, Psi parameters: an all-reduce counts twice."""
        return None if self.message_psi is None else self.message_psi * _PAPER_TIMES.get(self.kind, 1)


def bytes_per_element(precision: Precision) -> int:
    """Bytes of one parameter, the unit in which the paper counts its elements."""
    return 4 if precision is Precision.FP32 else 2


def trained_bytes_per_element(spec: TrialSpec) -> int:
    """Bytes of one trained parameter, and of its gradient: of adapters in fp32 not those of the model's."""
    return 2 if spec.trains_in_16_bits else 4


def traffic_by_kind(
    rank: RankRecord, precision: Precision, step: StepKind = StepKind.STEADY, phases: Iterable[Phase] = tuple(Phase)
) -> list[KindTraffic]:
    """What `rank` hands to collectives in the `phases` of `step`, largest messages first.

    Empty where nothing was counted, which is also so for a world of one rank. What is communicated in another type than
    the parameters' (`communication_data_type`, accumulation in fp32) counts by its bytes, not by its elements.
    """
    wanted = set(phases)
    sums: dict[tuple[str, int, int | None], list[CollectiveTraffic]] = {}
    for row in rank.collectives:
        if row.step is step and row.phase in wanted:
            sums.setdefault((row.kind, row.group_size, row.num_nodes), []).append(row)
    psi_bytes = None if rank.parameters is None else rank.parameters.total * bytes_per_element(precision)
    traffic_rows = [_summed(kind, size, nodes, rows, psi_bytes) for (kind, size, nodes), rows in sums.items()]
    return sorted(
        traffic_rows,
        key=lambda traffic: (-traffic.message_bytes, traffic.kind, traffic.group_size, traffic.num_nodes or 0),
    )


def _summed(
    kind: str, group_size: int, num_nodes: int | None, rows: Sequence[CollectiveTraffic], psi_bytes: int | None
) -> KindTraffic:
    message_bytes = sum(row.message_bytes for row in rows)
    psi = message_bytes / psi_bytes if psi_bytes else None
    return KindTraffic(kind, group_size, sum(row.calls for row in rows), message_bytes, psi, num_nodes)


def volume_psi(traffic: Iterable[KindTraffic]) -> float | None:
    """The paper's data volume of a step, in Psi: 2 for stages 0 to 2 and 3 for stage 3, by the paper."""
    volumes = [collective.volume_psi for collective in traffic]
    known = [volume for volume in volumes if volume is not None]
    return sum(known) if len(known) == len(volumes) else None
