"""What lies between the ZeRO paper's communication volume and the one that was counted, in lines that add up.

Each line is computed from the model's tensors or read off one kind of collective; what they leave has its own line.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from benchmarks.prediction.paper_lines import LEFT_OVER, setting_of
from benchmarks.prediction.simulated import num_params
from zerobench.common.vocabulary import Phase
from zerobench.config.derived.zero_paper import communication_elements
from zerobench.config.trial.trial import TrialSpec
from zerobench.estimate.clock.collectives import KindTraffic, bytes_per_element, traffic_by_kind, volume_psi
from zerobench.estimate.memory.deepspeed.stage_3 import persistent_elements
from zerobench.records.records import RankRecord

PHASES = tuple(phase for phase in Phase if phase is not Phase.INIT)
REGATHERED = "parameters kept from forward to backward (-), gathered once more to recompute (+)"
_SCALAR_BYTES = 64
"""Messages up to here are flags and norms."""


@dataclass(frozen=True)
class Cell:
    """One model under one setting: a trial that was simulated, and its record."""

    setting: str
    trial: TrialSpec
    rank: RankRecord

    @property
    def stage(self) -> int:
        """ZeRO stage."""
        return self.trial.zero_stage or 0

    @property
    def psi_bytes(self) -> int:
        """Bytes of all parameters, the unit."""
        return num_params(self.rank) * bytes_per_element(self.trial.precision)

    @property
    def paper_psi(self) -> float:
        """The paper's volume."""
        return communication_elements(num_params(self.rank), self.stage) / num_params(self.rank)

    @cached_property
    def traffic(self) -> list[tuple[Phase, KindTraffic]]:
        """Each kind of collective of each phase of a steady step."""
        precision = self.trial.precision
        return [
            (phase, traffic) for phase in PHASES for traffic in traffic_by_kind(self.rank, precision, phases=[phase])
        ]

    @property
    def counted_psi(self) -> float:
        """The volume that was counted."""
        return volume_psi(traffic for _, traffic in self.traffic) or 0.0

    @property
    def scalars_psi(self) -> float:
        """Volume of flags and norms."""
        return sum(traffic.volume_psi or 0.0 for _, traffic in self.traffic if _is_scalar(traffic))

    def message_bytes(self, kind: str) -> int:
        """Bytes of the messages of one kind, flags and norms left out."""
        return sum(
            traffic.message_bytes for _, traffic in self.traffic if traffic.kind == kind and not _is_scalar(traffic)
        )


def _is_scalar(traffic: KindTraffic) -> bool:
    return traffic.message_bytes <= _SCALAR_BYTES * traffic.calls


def causes(cell: Cell) -> dict[str, float]:
    """What lies between the paper's volume and the counted one, in P; the last line is what the others leave."""
    by_stage = (_stage_0, _stages_1_and_2, _stages_1_and_2, _stage_3)
    sizes = {name: num_bytes / cell.psi_bytes for name, num_bytes in by_stage[cell.stage](cell).items()}
    sizes["flags and norms of a few bytes"] = cell.scalars_psi
    return sizes | {LEFT_OVER: cell.counted_psi - cell.paper_psi - sum(sizes.values())}


def _stage_0(_cell: Cell) -> dict[str, int]:
    """runtime/engine.py, allreduce_bucket: as the paper has it."""
    return {}


def _stages_1_and_2(cell: Cell) -> dict[str, int]:
    """stage_1_and_2.py: average_tensor all-reduces a bucket in which several ranks have a part, unless
    use_multi_rank_bucket_allreduce is false: then each part is reduced to its owner. The flat parameters are padded.
    """
    setting = setting_of(cell.trial)
    padding = setting.flat_partition * cell.trial.world_size - setting.num_params
    return {
        "gradients all-reduced, not reduced to their owners: once more": cell.message_bytes("all_reduce"),
        "parameters padded to 2N elements, gathered": setting.case.element * padding,
    }


def _stage_3(cell: Cell) -> dict[str, int]:
    """partition_parameters.py, _aligned_size; partitioned_param_coordinator.py and parameter_offload.py.

    Persistent parameters are gathered once a step, after the update. How much else stays live from forward to backward
    is decided module by module, so that line is read off the count: with the limits at 0 it must be none.
    """
    setting = setting_of(cell.trial)
    element = setting.case.element
    padded = element * setting.sharded * cell.trial.world_size
    # What each persistent tensor's parts come to on all ranks.
    limit = setting.case.zero("stage3_param_persistence_threshold")
    small = [part for tensor, part in zip(setting.tensors, setting.parts, strict=True) if tensor <= limit]
    persistent = element * cell.trial.world_size * sum(small) if persistent_elements(setting) else 0
    padding = padded - cell.psi_bytes
    return {
        "each tensor padded to N elements: gathered twice, reduced once": 2 * padding
        + cell.message_bytes("reduce_scatter")
        - cell.psi_bytes,
        "persistent parameters, gathered once a step instead of twice": -persistent,
        REGATHERED: cell.message_bytes("all_gather") - 2 * padded + persistent,
    }
