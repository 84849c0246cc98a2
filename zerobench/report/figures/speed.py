"""Speed of a trial, from the raw times of its steps: the slowest rank decides each step.

All ranks wait for the slowest, so a step takes the largest time over the ranks; its forward, backward and step
phases are those of that same rank, so that they add up to it. Medians over the timed steps follow. A server has
no forward pass and a step of its own making: the ranks here are its workers, and its times stand apart (server.py).
Of a trial whose batch grows only steps of the full batch count, those before it stand apart too (batch_ramp.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from zerobench.config.hardware.hardware import peak_flops
from zerobench.records.records import StepTime
from zerobench.records.trials import Trial, all_ranks_ran, completed, workers
from zerobench.report.figures.stats import median

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens per second and rank."""

    tokens_per_s: float
    interval: tuple[float, float] | None = None
    """80% interval of an expected rate; None for a measured one."""


@dataclass(frozen=True)
class Speed:
    """Speed of one completed trial. Times in seconds, medians over the timed steps; None: not available."""

    steps: Sequence[StepTime]
    """Each timed step, on the rank that was slowest in it."""
    step_time_s_median: float
    forward_s: float | None
    backward_s: float | None
    step_s: float | None
    """The phase `step`: the optimizer's update."""
    samples_per_s: float | None
    """Sequences per second over all ranks; None for one rank alone of many, which nobody waited for."""
    tokens_per_s: float | None
    tflops_per_gpu: float | None
    """Model TFLOP/s of one rank: flops_per_step / step time (formula: RankRecord.flops_formula)."""
    mfu: float | None
    """Model FLOPs utilization: achieved over peak FLOP/s (PaLM, arXiv 2204.02311, appendix B)."""
    peak_flops: float | None
    peak_source: str | None
    void: str | None
    """Reason why the throughput is void, where it is; the figures of throughput are then None."""


def slowest_steps(trial: Trial) -> list[StepTime]:
    """For each timed step that all ranks finished, the times of the rank that was slowest in it.

    Those of a server where it alone was run, as in a solo trial of rank 0.
    """
    per_rank = [rank.step_times for rank in workers(trial) or trial.ranks if rank.step_times]
    return [max(step, key=lambda time: time.step_s) for step in zip(*per_rank, strict=False)]


def timed_tokens(trial: Trial) -> list[int]:
    """Tokens of each timed step, all ranks together."""
    rank = next((record for record in workers(trial) or trial.ranks if record.step_times), None)
    if rank is None:
        return []
    noted = [batch.tokens for batch in rank.batches if batch.kind == "timed"]
    return noted or [trial.spec.global_batch_tokens] * len(rank.step_times)


def full_batch_values(trial: Trial, timed: Sequence[T]) -> list[T]:
    """The values of timed steps with the full batch: all of them where it is fixed."""
    if trial.spec.batch_ramp is None:
        return list(timed)
    full = trial.spec.global_batch_tokens
    return [value for value, tokens in zip(timed, timed_tokens(trial), strict=False) if tokens == full]


def alloc_retries(trial: Trial) -> int:
    """The most times that one rank's allocator had to flush its cache and try again."""
    counts = (row.alloc_retries for rank in trial.ranks for row in rank.device_memory)
    return max(counts, default=0)


def speed_of(trial: Trial) -> Speed | None:
    """The speed of `trial`; None where it did not complete or timed no step.

    Throughput is void where the allocator had to retry: the steps then measure cudaMalloc, not the training.
    """
    steps = _timed(trial)
    if not steps:
        return None
    seconds, void = _median([time.step_s for time in steps]), void_reason(trial)
    flops = None if void else flops_per_s(trial, seconds)
    is_known = all(map(trial.spec.knows, ("micro_batch_size", "gradient_accumulation_steps")))
    samples = trial.spec.global_batch_size / seconds if all_ranks_ran(trial) and not void and is_known else None
    peak = peak_flops(trial.ranks[0].device_name, trial.spec.precision)
    return Speed(
        steps=steps,
        step_time_s_median=seconds,
        forward_s=_median_of_known([time.forward_s for time in steps]),
        backward_s=_median_of_known([time.backward_s for time in steps]),
        step_s=_median_of_known([time.optimizer_s for time in steps]),
        samples_per_s=samples,
        tokens_per_s=samples * trial.spec.sequence_length if samples and trial.spec.knows("sequence_length") else None,
        tflops_per_gpu=None if flops is None else flops / 1e12,
        mfu=flops / peak[0] if flops is not None and peak else None,
        peak_flops=peak[0] if peak else None,
        peak_source=peak[1] if peak else None,
        void=void,
    )


def void_reason(trial: Trial) -> str | None:
    """Reason why the speed of `trial` is void; None where it is not, or nothing was timed."""
    retries = alloc_retries(trial)
    return f"{retries} allocator retries" if retries and _timed(trial) else None


def _timed(trial: Trial) -> list[StepTime]:
    """The timed steps with the full batch of a trial that completed."""
    return full_batch_values(trial, slowest_steps(trial)) if completed(trial) else []


def _median(values: Sequence[float]) -> float:
    middle = median(values)
    assert middle is not None  # noqa: S101 -- callers pass at least one step
    return middle


def _median_of_known(values: Sequence[float | None]) -> float | None:
    """None where no value is known: of a phase that the engine does not tell from the others."""
    return median([value for value in values if value is not None])


def flops_per_s(trial: Trial, seconds: float) -> float | None:
    """FLOP/s of one rank. Ranks do equal work; were they not, the smallest is what all of them surely did."""
    flops = [rank.flops_per_step for rank in trial.ranks if rank.flops_per_step is not None]
    return min(flops) / seconds if flops and seconds > 0 else None


def step_seconds_by_rank(trial: Trial) -> dict[int, float]:
    """The median step time of each rank that timed steps, in seconds."""
    ranks = workers(trial) or trial.ranks
    timed = {rank.rank: [time.step_s for time in full_batch_values(trial, rank.step_times)] for rank in ranks}
    return {rank: _median(seconds) for rank, seconds in timed.items() if seconds}


def nvme_bytes_per_s(trial: Trial) -> tuple[float | None, float | None]:
    """Bytes read and written per second in the steady step, over all ranks; None without NVMe offload.

    The ranks' bytes are added, because they share the device; the time is that of the slowest rank, and is the
    time of the phases in which the bytes moved, compute included. A simulation moves nothing.
    """
    offloads = (trial.spec.offload_optimizer, trial.spec.offload_param)
    rows = [[row for row in rank.nvme if row.step == "steady"] for rank in trial.ranks]
    seconds = max((sum(row.seconds for row in of_rank) for of_rank in rows), default=0.0)
    is_real = trial.spec.evidence.needs_device
    if "nvme" not in offloads or not is_real or not completed(trial) or seconds <= 0:
        return None, None
    moved = [row for of_rank in rows for row in of_rank]
    read, written = sum(row.read_bytes for row in moved), sum(row.written_bytes for row in moved)
    return read / seconds, written / seconds
