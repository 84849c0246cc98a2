"""The trials that a headline chooses among: what each needs and how fast it is, repeats of one trial together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from zerobench.records import Status
from zerobench.report.frames.doubts import disagree
from zerobench.report.frames.run_frames import RunFrames
from zerobench.report.stats import median, median_interval
from zerobench.spec.strategy import STRATEGIES
from zerobench.spec.trial import Evidence

_REFERENCES = {name for name, info in STRATEGIES.items() if info.is_reference}
_MEASURED = Evidence.MEASURED.value

Key = tuple[str, str]
"""run_id and trial_id."""


class Work(NamedTuple):
    """What must be equal for tokens per second to be compared."""

    model: str
    ranks: str
    sequence: str
    precision: str


@dataclass(frozen=True)
class Candidate:
    """One trial that completed and can be believed; repeats of it together."""

    label: str
    work: Work
    config_hash: str
    evidence: str
    is_reference: bool
    """Whether it is the plain loop on one rank that the others are held against, and no choice itself."""
    stage: int | None
    offloads: bool
    needed_bytes: int | None
    """The largest over ranks, start-up and repeats: reserved memory, context and NCCL where known."""
    capacity_bytes: int | None
    step_bound_s: float | None
    """What a step takes at least, of simulated trials."""
    tokens_per_rank: int | None
    """Tokens of one rank in a step."""
    rates: Sequence[float]
    """Tokens per second of each timed step, or of each repeat where there are several; empty where void or untimed."""
    num_repeats: int

    @property
    def tokens_per_s(self) -> float | None:
        """The median."""
        return median(self.rates)

    @property
    def interval(self) -> tuple[float, float]:
        """Where the median lies with 95 % confidence; of five values or fewer, which cannot say, all of them."""
        return median_interval(self.rates) or (min(self.rates), max(self.rates))

    @property
    def bound_s_per_token(self) -> float | None:
        """What a rank takes at least for a token: steps of different batches are not compared by their length."""
        if self.step_bound_s is None or not self.tokens_per_rank:
            return None
        return self.step_bound_s / self.tokens_per_rank

    @property
    def fits(self) -> bool | None:
        """None where the device's memory, or the trial's need, is not known."""
        if self.capacity_bytes is None or self.needed_bytes is None:
            return None
        return self.needed_bytes <= self.capacity_bytes

    def overlaps(self, other: Candidate) -> bool:
        """Whether neither can be called faster."""
        return self.interval[0] <= other.interval[1] and other.interval[0] <= self.interval[1]


def candidates(frames: RunFrames) -> list[Candidate]:
    """The trials that completed and agree with their reference, repeats joined, in the runs' order.

    A prediction of what was measured too is left out: the measurement counts.
    """
    trials = frames.trials
    believed = trials[(trials["status"] == Status.COMPLETED.value) & ~disagree(trials)]
    needs = _needed_by_trial(frames)
    rates = _rates_by_trial(frames, believed)
    found = [_candidate(rows, needs, rates) for rows in _repeats(believed)]
    ran_out = trials[(trials["status"] == Status.OUT_OF_DEVICE_MEMORY.value) & (trials["evidence"] == _MEASURED)]
    measured = {one.config_hash for one in found if one.evidence == _MEASURED} | set(ran_out["config_hash"])
    return [one for one in found if one.evidence == _MEASURED or one.config_hash not in measured]


def _repeats(believed: pd.DataFrame) -> Iterable[Sequence[Mapping[Any, Any]]]:
    """The rows of each piece of work, on each device."""
    groups: dict[tuple[str, ...], list[Mapping[Any, Any]]] = {}
    for row in believed.to_dict("records"):
        key = tuple(str(row[name]) for name in ("run_id", "config_hash", "evidence", "gpu", "device_name"))
        groups.setdefault(key, []).append(row)
    return groups.values()


def _candidate(
    rows: Sequence[Mapping[Any, Any]], needs: Mapping[Key, int], rates: Mapping[Key, Sequence[float]]
) -> Candidate:
    first, keys = rows[0], [(row["run_id"], row["trial_id"]) for row in rows]
    known = [needs[key] for key in keys if key in needs]
    timed = [rates[key] for key in keys if key in rates]
    several = [middle for one in timed if (middle := median(one)) is not None]
    return Candidate(
        label=_label(rows),
        work=_work(first),
        config_hash=str(first["config_hash"]),
        is_reference=str(first["strategy"]) in _REFERENCES,
        evidence=str(first["evidence"]),
        stage=_value(first["zero_stage"]),
        offloads={str(first["offload_optimizer"]), str(first["offload_param"])} != {"none"},
        needed_bytes=max(known, default=None),
        step_bound_s=None if pd.isna(first["step_bound_s"]) else float(first["step_bound_s"]),
        tokens_per_rank=_tokens_per_rank(first),
        capacity_bytes=_value(first["capacity_bytes"]),
        rates=several if len(timed) > 1 else [rate for one in timed for rate in one],
        num_repeats=len(rows),
    )


def _label(rows: Sequence[Mapping[Any, Any]]) -> str:
    """The trial's name; of several repeats without the number of the first."""
    label, number = str(rows[0]["label"]), f"rep{rows[0]['repeat']}"
    if len(rows) == 1:
        return label
    words = [word for word in label.split(" ") if word != number]
    return " ".join(words if words and words[0] != "@" else [str(rows[0]["strategy"]), *words])


def _tokens_per_rank(row: Mapping[Any, Any]) -> int | None:
    parts = [_value(row[name]) for name in ("micro_batch_size", "gradient_accumulation_steps", "sequence_length")]
    return None if None in parts else math.prod(part or 0 for part in parts)


def _work(row: Mapping[Any, Any]) -> Work:
    size, length = int(row["world_size"]), _value(row["sequence_length"])
    sequence = "of sequences of unknown length" if length is None else f"of {length:,} tokens a sequence"
    model, precision = (row[name] if not pd.isna(row[name]) else "unknown" for name in ("model", "precision"))
    return Work(f"of {model}", f"on {size} rank{'' if size == 1 else 's'}", sequence, f"in {precision}")


def _value(value: Any) -> int | None:
    return None if pd.isna(value) else int(value)


def _needed_by_trial(frames: RunFrames) -> dict[Key, int]:
    """What the rank that needs most needs of its device: the allocator's reserved memory, or the tensors' peak where no
    allocator was watched, with context and NCCL where they are known.
    """
    ranks = frames.ranks
    figures = ["device_peak_bytes", "first_peak_bytes", "allocated_peak_bytes", "reserved_peak_bytes"]
    tensors = ranks[figures].max(axis=1)
    whole = tensors + ranks["context_bytes"].fillna(0) + ranks["collectives_bytes"].fillna(0)
    largest = whole.groupby([ranks["run_id"], ranks["trial_id"]]).max().dropna()
    return {_key(key): int(value) for key, value in largest.items()}


def _key(group: Any) -> Key:
    run_id, trial_id = group
    return str(run_id), str(trial_id)


def _rates_by_trial(frames: RunFrames, believed: pd.DataFrame) -> dict[Key, list[float]]:
    """Tokens per second in each timed step of the trials whose throughput stands."""
    fair = believed[believed["void"].isna() & believed["tokens_per_s"].notna() & (believed["evidence"] == _MEASURED)]
    sequences = fair["world_size"] * fair["micro_batch_size"] * fair["gradient_accumulation_steps"]
    tokens = dict(
        zip(zip(fair["run_id"], fair["trial_id"], strict=True), sequences * fair["sequence_length"], strict=True)
    )
    steps = frames.steps[frames.steps["step_s"] > 0]
    return {
        _key(key): [float(tokens[key]) / float(seconds) for seconds in group]
        for key, group in steps.groupby(["run_id", "trial_id"], sort=False)["step_s"]
        if key in tokens
    }


def timed_groups(found: Sequence[Candidate]) -> dict[str, list[Candidate]]:
    """The candidates that were timed and do not fail to fit, by comparable work, the largest group first.

    A group is named by what tells its work from the others'. The reference is in none, where there is anything else.
    """
    timed = [one for one in found if one.rates and one.fits is not False]
    ranked = [one for one in timed if not one.is_reference] or timed
    varying = [index for index in range(len(Work._fields)) if len({one.work[index] for one in ranked}) > 1]
    groups: dict[str, list[Candidate]] = {}
    for one in ranked:
        groups.setdefault(" ".join(one.work[index] for index in varying), []).append(one)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


def equally_fast(found: Sequence[Candidate]) -> list[Candidate]:
    """The fastest of `found`, and those that cannot be told from it, the one with the least memory first."""
    best = max(found, key=lambda one: one.tokens_per_s or 0.0)
    alike = [one for one in found if one.overlaps(best)]
    return sorted(alike, key=lambda one: (one.needed_bytes is None, one.needed_bytes or 0))
