"""Predicted trials joined to the measured ones of the same work (`config_hash`), cell by cell.

A cell is one figure: a step, a phase, a place, a category and a quantity, on one rank. What makes the two sides
comparable is decided here and nowhere else:

- rank: a prediction plays one rank and is held against the measured rank of that number; how far the other measured
  ranks lie apart stands beside it.
- repeats: the lower median of each side, cell by cell, so that every figure is one that some trial has left.
  Categories of medians need not add up to the median of the total.
- host: `rest_of_process` is taken out of the host's total on both sides, because interpreter and libraries are no
  figure of the work and a simulated rank has none that mean anything. Resident sizes are not compared at all.
- kernels: what they work in on a CPU (`kernel_workspace`) no prediction knows; it is taken out of the measured peaks,
  and said beside them.
- a category that a ledger does not list has no bytes there; one that a formula does not list is one it says nothing of.
- what neither side has a byte of is no cell.

What no real ranks measured is held against a rank that was played alone on a real device (solo): one GPU measures the
memory of one of a thousand that way, and the simulation of that rank has its counterpart. The pair says which it is.

A measured trial that did not complete, whose losses disagree (parity.py) or that ran on another device than the
prediction is for, is not compared; the pair says why. So does one whose prediction did not complete.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from zerobench.common.grouped import grouped
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.config.hardware.hardware import find_gpu
from zerobench.config.trial.trial import Evidence
from zerobench.records.records import RankRecord
from zerobench.records.trials import Trial, completed
from zerobench.report.figures.parity import ParityJudge
from zerobench.report.figures.predictions.figures import (
    Figures,
    Key,
    Quantity,
    figures,
    looked_up,
    median,
    unforeseen_bytes,
)
from zerobench.report.words.column_units import plain


@dataclass(frozen=True)
class Cell:
    """One figure, measured and predicted."""

    rank: int
    step: StepKind
    phase: Phase
    place: Place
    category: Category
    quantity: Quantity
    measured_bytes: int
    predicted_bytes: int
    measured_min_bytes: int
    """The smallest over the measured ranks."""
    measured_max_bytes: int

    @property
    def error(self) -> float | None:
        """Predicted minus measured, as a fraction of measured: below 0 where the prediction is too small.

        None where nothing was measured of what was predicted.
        """
        # Not predicted / measured - 1, whose rounding would put an exact 1% on either side of a limit of 1%.
        difference = self.predicted_bytes - self.measured_bytes
        return difference / self.measured_bytes if self.measured_bytes > 0 else None


@dataclass(frozen=True)
class OmittedTrial:
    """A trial that is not compared."""

    trial: Trial
    why: str
    """What follows its name in a sentence."""
    reference: str | None = None
    """trial_id of the trial that the sentence ends with."""


@dataclass(frozen=True)
class Pair:
    """One prediction and the trials that measured the same work."""

    predicted: Trial
    """The first of its repeats that completed."""
    measured: tuple[Trial, ...]
    """Those of the candidates that can be believed; with a prediction that completed, they are compared."""
    left_out: tuple[OmittedTrial, ...]
    candidates: tuple[Trial, ...]
    """All trials of the run that set out to measure this work, whatever became of them."""
    measured_figures: Figures
    """Of the measured rank that was predicted, over repeats."""
    predicted_figures: Figures

    @property
    def against(self) -> Evidence:
        """What the prediction is held against: `measured`, or `solo` where no real ranks set out to do this work."""
        return self.candidates[0].spec.evidence

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """What both sides have figures for, in the order of the records' enumerations; none where not compared."""
        keys = sorted({*self.measured_figures, *self.predicted_figures}, key=lambda key: key.position)
        return tuple(cell for key in keys if (cell := self._cell(key)) is not None)

    @cached_property
    def totals(self) -> Mapping[tuple[StepKind, Phase, Place, Quantity], Cell]:
        """The cells of category `total`: the main figures.

        Host and NVMe count where states are offloaded: else they hold a batch and a few scalars, and a large error of
        next to nothing would hide what matters.
        """
        offloads = self.predicted.spec.offloaded_to
        cells = [cell for cell in self.cells if cell.category is Category.TOTAL]
        return {
            (cell.step, cell.phase, cell.place, cell.quantity): cell
            for cell in cells
            if offloads or cell.place is Place.DEVICE
        }

    @property
    def rank(self) -> int:
        """The rank that was predicted."""
        return self.predicted.spec.prediction.rank

    def unforeseen_bytes(self, place: Place) -> int:
        """The most that kernels and collectives worked in within a phase on the measured rank: in no figure here."""
        return max((unforeseen_bytes(rank, place) for rank in _ranks(self.measured, self.rank)), default=0)

    def measured_bytes(self, key: Key) -> int | None:
        """The measured figure; 0 of a category that the ledger does not list, None where there is no ledger."""
        return looked_up(self.measured_figures, key)

    def predicted_bytes(self, key: Key) -> int | None:
        """The same of the predicted figure; None of a category that a formula does not list."""
        return looked_up(self.predicted_figures, key, fills=self.predicted.spec.evidence is not Evidence.FORMULA)

    def _cell(self, key: Key) -> Cell | None:
        measured, predicted = self.measured_bytes(key), self.predicted_bytes(key)
        if measured is None or predicted is None or measured == predicted == 0:
            return None
        spread = [
            value for rank_figures in self._by_rank.values() if (value := looked_up(rank_figures, key)) is not None
        ]
        return Cell(self.rank, *key, measured, predicted, min(spread), max(spread))

    @cached_property
    def _by_rank(self) -> Mapping[int, Figures]:
        numbers = {rank.rank for trial in self.measured for rank in trial.ranks}
        others = {number: _figures(self.measured, number) for number in numbers if number != self.rank}
        return {self.rank: self.measured_figures, **others}


def join(trials: Iterable[Trial], judge: ParityJudge | None = None) -> list[Pair]:
    """A pair for each prediction among `trials` whose work some trial among them was to measure, in their order.

    `judge` is that of the whole run, where `trials` are only some of it.
    """
    known = list(trials)
    judge = judge or ParityJudge(known)
    on_devices = (trial for trial in known if trial.spec.evidence in {Evidence.MEASURED, Evidence.SOLO})
    by_work = grouped(on_devices, lambda trial: trial.spec.config_hash)
    predicted = (trial for trial in known if trial.spec.evidence is not Evidence.MEASURED)
    repeats = grouped(predicted, _prediction).items()
    groups = [(group, _candidates(by_work.get(work, ()), group[0])) for (work, *_), group in repeats]
    return [_pair(group, candidates, judge) for group, candidates in groups if candidates]


def _candidates(work: Sequence[Trial], predicted: Trial) -> list[Trial]:
    """Of this work's trials those that set out to measure it: real ranks, or where there are none, its rank alone."""
    measured = [trial for trial in work if trial.spec.evidence is Evidence.MEASURED]
    if measured or predicted.spec.evidence is Evidence.SOLO:
        return measured
    rank = predicted.spec.prediction.rank
    return [trial for trial in work if trial.spec.prediction.rank == rank]


def _prediction(trial: Trial) -> tuple[str, Evidence, range, str | None]:
    """In what repeats of one prediction are equal."""
    spec = trial.spec
    return spec.config_hash, spec.evidence, spec.played_ranks, spec.prediction.gpu


def _pair(predictions: Sequence[Trial], candidates: Sequence[Trial], judge: ParityJudge) -> Pair:
    usable = [trial for trial in predictions if completed(trial)]
    first = (usable or predictions)[0]
    verdicts = [(trial, _left_out(trial, first, judge)) for trial in candidates]
    left_out = [verdict for _, verdict in verdicts if verdict is not None]
    believed = tuple(trial for trial, verdict in verdicts if verdict is None)
    if not usable:
        left_out.append(OmittedTrial(first, _ending(first)))
    elif not _ranks(usable, first.spec.prediction.rank):
        left_out.append(OmittedTrial(first, f"has no record of rank {first.spec.prediction.rank}"))
    number = first.spec.prediction.rank
    pair = Pair(
        predicted=first,
        measured=believed,
        left_out=tuple(left_out),
        candidates=tuple(candidates),
        measured_figures=_figures(believed, number) if usable else {},
        predicted_figures=_figures(usable, number) if believed else {},
    )
    if pair.cells or left_out:
        return pair
    return replace(pair, left_out=(OmittedTrial(first, "has no measured counterpart"),))


def _figures(repeats: Iterable[Trial], rank: int) -> Figures:
    """The figures of one rank over repeats of a trial."""
    return median([figures(record) for record in _ranks(repeats, rank)])


def _left_out(measured: Trial, predicted: Trial, judge: ParityJudge) -> OmittedTrial | None:
    """Why this measured trial is not held against this prediction; None where it is."""
    if not completed(measured):
        return OmittedTrial(measured, _ending(measured))
    parity = judge.judge(measured)
    if parity is not None and not parity.agrees:
        return OmittedTrial(
            measured, f"was measured, but its {parity.disagreeing} differ from those of", parity.reference
        )
    rank = predicted.spec.prediction.rank
    if not _ranks([measured], rank):
        return OmittedTrial(measured, f"was measured, but has no record of the predicted rank {rank}")
    other = other_device(measured, predicted)
    return None if other is None else OmittedTrial(measured, other)


def _ending(trial: Trial) -> str:
    record = trial.record
    rule = f" by the rule {record.rule}" if record.rule else ""
    reason = f": {plain(record.reason)}" if record.reason and not record.rule else ""
    return f"did not complete ({record.status.words}{rule}){reason}"


def other_device(measured: Trial, predicted: Trial) -> str | None:
    """Why a figure predicted for one device says nothing of the one measured on; None where they are alike.

    Kernels, and so what they keep, differ between devices. A formula speaks of all of them.
    """
    evidence, gpu, device = predicted.spec.evidence, predicted.spec.prediction.gpu, _device(measured)
    if device is None:
        return None
    if evidence.is_forked:
        target = gpu or "CPU ranks"
        alike = _same_gpu(gpu, device.name) if gpu and device.is_gpu else (gpu is not None) == device.is_gpu
    elif evidence is Evidence.SOLO and (played_on := _device(predicted)) is not None:
        target = played_on.name
        alike = played_on.is_gpu == device.is_gpu and (not device.is_gpu or _same_gpu(target, device.name))
    else:
        return None
    return None if alike else f"was measured on {plain(device.name)}, but the prediction is for {plain(target)}"


class _Device(NamedTuple):
    name: str
    is_gpu: bool


def _device(trial: Trial) -> _Device | None:
    """What the ranks of `trial` ran on; where none left a record, what NVML saw; None where nothing says."""
    ranks = [_Device(rank.device_name, rank.device_type == "cuda") for rank in trial.ranks]
    seen = [_Device(device.name, is_gpu=True) for node in trial.record.nvml for device in node.devices]
    return next(iter([*ranks, *seen]), None)


def _same_gpu(name: str, other: str) -> bool:
    """Whether two names may mean one GPU: they do unless the catalogue knows both and tells them apart."""
    entries = (find_gpu(name), find_gpu(other))
    return None in entries or entries[0] == entries[1]


def _ranks(trials: Iterable[Trial], number: int) -> list[RankRecord]:
    return [rank for trial in trials for rank in trial.ranks if rank.rank == number]
