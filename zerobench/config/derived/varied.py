"""Variants that a search tries at a fixed global batch: micro batch (accumulation follows), checkpointing, DeepSpeed's
keys.

Stage and offload are the cells of a plan (zerobench.config.sweep.plan); each cell has all of these variants.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zerobench.common.errors import UserError
from zerobench.common.units import counted
from zerobench.config.derived.cluster import read_count, read_tokens
from zerobench.config.trial.recomputation import OPERATIONS, Checkpointing
from zerobench.config.trial.trial import Offload, TrialSpec

WHOLE: tuple[Checkpointing, ...] = (False, True)
"""Checkpointing variants of `plan`."""
SELECTIVE: tuple[Checkpointing, ...] = (False, "every-4", "every-2", OPERATIONS, True)
"""Checkpointing variants of `tune`."""

_MOST_SEQUENCES = 10**7


@dataclass(frozen=True)
class Variations:
    """Variants of a cell's trial."""

    micro_batches: tuple[int, ...]
    """Divisors of `sequences`."""
    sequences: int
    """Sequences of the global batch that each rank trains in a step."""
    checkpointings: tuple[Checkpointing, ...]
    sets_keys: bool = False
    """Whether DeepSpeed's keys vary as well."""
    ratios: tuple[float, ...] = (0.75, 0.5, 0.25)
    """Shares of an offloaded optimizer that leave the GPU."""

    def families(self, cell: TrialSpec) -> Iterator[list[TrialSpec]]:
        """Variants of the cell: those of a family differ only in their micro batch, the smallest first."""
        for keys in _settings(cell, self.ratios) if self.sets_keys else [{}]:
            for checkpointing in self.checkpointings:
                same = {"activation_checkpointing": checkpointing, "ds_config": {**cell.ds_config, **keys}}
                yield [cell.model_copy(update=same | self._batch(micro)) for micro in self.micro_batches]

    def smallest(self, cell: TrialSpec) -> TrialSpec:
        """The cell at the smallest micro batch, even if it cannot be tried."""
        return cell.model_copy(update=self._batch(self.micro_batches[0]))

    def _batch(self, micro: int) -> dict[str, int]:
        return {"micro_batch_size": micro, "gradient_accumulation_steps": self.sequences // micro}


def read_global_batch(sequences: str | None, tokens: str | None, *, sequence_length: int, ranks: int) -> int | None:
    """Read sequences per step from `--global-batch` or, rounded to a multiple of the ranks, from `--tokens-per-step`.

    Raises UserError if both are given, or the ranks cannot share the batch evenly.
    """
    if tokens is not None:
        if sequences is not None:
            raise UserError("--tokens-per-step contradicts --global-batch: give one of them")
        tokens_per_step = read_tokens("--tokens-per-step", tokens)
        return max(1, round(tokens_per_step / (sequence_length * ranks))) * ranks
    if sequences is None:
        return None
    batch = read_count("--global-batch", sequences, _MOST_SEQUENCES)
    if batch % ranks:
        near = [str(choice) for choice in (batch // ranks * ranks, (batch // ranks + 1) * ranks) if choice]
        shared = f"{counted(ranks, 'GPU')} cannot share {counted(batch, 'sequence')}"
        raise UserError(f"--global-batch: {shared}; choices: {', '.join(near)}")
    return batch


def varied(batch: int, ranks: int, work: Mapping[str, Any], *, tunes: bool) -> Variations:
    """Variants at `batch` sequences per step; `work` has the fixed axes. Raises UserError if none divides the batch."""
    sequences = batch // ranks
    micro, accumulation = work.get("micro_batch_size"), work.get("gradient_accumulation_steps")
    micro_batch_sizes = [size for size in range(1, sequences + 1) if sequences % size == 0]
    if micro is not None:
        micro_batch_sizes = [size for size in micro_batch_sizes if size == micro]
    if accumulation is not None:
        micro_batch_sizes = [size for size in micro_batch_sizes if size * accumulation == sequences]
    if not micro_batch_sizes:
        given = {"--micro-batch": micro, "--gradient-accumulation": accumulation}
        options = " and ".join(f"{option} {value}" for option, value in given.items() if value is not None)
        raise UserError(
            f"--global-batch: {batch} on {counted(ranks, 'GPU')} is {sequences} per GPU, not divisible by {options}"
        )
    checkpointings = (True,) if work.get("activation_checkpointing") else SELECTIVE if tunes else WHOLE
    return Variations(tuple(micro_batch_sizes), sequences, checkpointings, sets_keys=tunes)


_BUCKETS = {
    1: ("reduce_bucket_size", "allgather_bucket_size"),
    2: ("reduce_bucket_size", "allgather_bucket_size"),
    3: ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_max_live_parameters"),
}
_SMALL = 50_000_000
"""Elements: a tenth of DeepSpeed's buckets, still some milliseconds on a link."""


_REPLAYED: dict[int, tuple[tuple[str, int], ...]] = {
    1: (("reduce_bucket_size", _SMALL), ("allgather_bucket_size", _SMALL)),
    2: (("reduce_bucket_size", _SMALL), ("allgather_bucket_size", _SMALL)),
    3: (
        ("reduce_bucket_size", _SMALL),
        ("stage3_prefetch_bucket_size", 200_000_000),
        ("stage3_prefetch_bucket_size", 5_000_000),
        ("stage3_param_persistence_threshold", 1_000_000),
    ),
}
"""By stage: keys that only affect the order in which an engine issues its work, with values besides DeepSpeed's
defaults."""


def key_changes(trial: TrialSpec) -> list[dict[str, Any]]:
    """Changes of single keys that move collectives in a step of `trial`; its closed form ignores them."""
    pairs = _REPLAYED.get(trial.zero_stage or 0, ()) if trial.world_size > 1 else ()
    changes = [{f"zero_optimization.{name}": value} for name, value in pairs]
    return [change for change in changes if not change.items() <= trial.ds_config.items()]


FINE_RATIOS = tuple(tenths / 10 for tenths in range(9, 0, -1))
"""Offloaded shares for when both GPU and host memory may be short."""
_SUB_GROUP = 100_000_000
"""Elements: sub-groups move as a whole, and a rank's part is often a single one of DeepSpeed's default, 1e9."""


def _settings(cell: TrialSpec, ratios: Sequence[float]) -> Sequence[dict[str, Any]]:
    """DeepSpeed's defaults first; then reduction during the backward pass, which stages 1 and 2 do not do by default; a
    partly offloaded optimizer, which stage 3 supports; and small buckets, which never improve the expected time, so
    they are only chosen if they let something else fit.
    """
    stage = cell.zero_stage or 0
    if stage == 0:
        return [{}]
    ways: list[dict[str, Any]] = [{}]
    if stage in {1, 2} and cell.offload_optimizer is Offload.NONE:
        ways.append({"zero_optimization.overlap_comm": True})
    if stage == 3 and cell.offload_optimizer is Offload.CPU:
        ways += [
            {"zero_optimization.offload_optimizer.ratio": ratio, "zero_optimization.sub_group_size": _SUB_GROUP}
            for ratio in ratios
        ]
    small = {f"zero_optimization.{name}": _SMALL for name in _BUCKETS[stage]}
    return [way | more for more in ({}, small) for way in ways]
