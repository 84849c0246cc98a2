"""The trials that a headline chooses among: what each needs and how fast it is, repeats of one trial together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from zerobench.records import Status
from zerobench.report.choice import Option
from zerobench.report.frames.doubts import disagree
from zerobench.report.frames.run_frames import RunFrames
from zerobench.report.stats import median, median_interval
from zerobench.spec.strategy import STRATEGIES
from zerobench.spec.trial import Evidence, Offload

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
    offloads: tuple[Offload, Offload]
    """Where optimizer states and parameters are."""
    needed_bytes: int | None
    """The largest over ranks, start-up and repeats (capacity.py)."""
    capacity_bytes: int | None
    host_room: float | None
    """What is left of a node's memory as a share of it; None where nobody said how much there is."""
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
    def option(self) -> Option:
        """It as the rule of choice sees it; what is not known of the device has no room."""
        device = -1.0 if self.fits is None else 1 - (self.needed_bytes or 0) / (self.capacity_bytes or 1)
        room = device if self.host_room is None else min(device, self.host_room)
        return Option(self.stage, *self.offloads, room)

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
    rates = _rates_by_trial(frames, believed)
    found = [_candidate(rows, rates) for rows in _repeats(believed)]
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


def _candidate(rows: Sequence[Mapping[Any, Any]], rates: Mapping[Key, Sequence[float]]) -> Candidate:
    first, keys = rows[0], [(row["run_id"], row["trial_id"]) for row in rows]
    known = [need for row in rows if (need := _value(row["device_needed_bytes"])) is not None]
    timed = [rates[key] for key in keys if key in rates]
    several = [middle for one in timed if (middle := median(one)) is not None]
    return Candidate(
        label=_label(rows),
        work=_work(first),
        config_hash=str(first["config_hash"]),
        is_reference=str(first["strategy"]) in _REFERENCES,
        evidence=str(first["evidence"]),
        stage=_value(first["zero_stage"]),
        offloads=(_offload(first["offload_optimizer"]), _offload(first["offload_param"])),
        needed_bytes=max(known, default=None),
        capacity_bytes=_value(first["capacity_bytes"]),
        host_room=_host_room(first),
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


def _offload(name: Any) -> Offload:
    return Offload.NONE if pd.isna(name) else Offload(str(name))


def _host_room(row: Mapping[Any, Any]) -> float | None:
    needed, capacity = _value(row["host_needed_bytes"]), _value(row["host_capacity_bytes"])
    return None if needed is None or not capacity else 1 - needed / capacity


def _work(row: Mapping[Any, Any]) -> Work:
    size, length = int(row["world_size"]), _value(row["sequence_length"])
    sequence = "of sequences of unknown length" if length is None else f"of {length:,} tokens a sequence"
    model, precision = (row[name] if not pd.isna(row[name]) else "unknown" for name in ("model", "precision"))
    return Work(f"of {model}", f"on {size} rank{'' if size == 1 else 's'}", sequence, f"in {precision}")


def _value(value: Any) -> int | None:
    return None if pd.isna(value) else int(value)


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
