"""Terminal tables of what did not complete and why, of losses held against each other, and the notes of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from zerobench.records import Failure, NvmlSummary, Status, TrialRecord
from zerobench.report.column_units import MISSING, plain
from zerobench.report.labels import brief
from zerobench.report.nodes import node_name
from zerobench.report.parity import Parity, losses
from zerobench.report.terminal.layout import Column, Section, Shown, bullets, listed, mark, table
from zerobench.report.trials import completed
from zerobench.units import format_bytes, format_seconds

_PARTITIONED = ("reduce_bucket_size", "allgather_bucket_size", "overlap_comm")
_GATHERED = (
    "reduce_bucket_size",
    "prefetch_bucket_size",
    "max_live_parameters",
    "param_persistence_threshold",
    "sub_group_size",
    "overlap_comm",
)
BUFFER_SETTINGS: Mapping[int | None, tuple[str, ...]] = {1: _PARTITIONED, 2: _PARTITIONED, 3: _GATHERED}
"""By ZeRO stage, the settings whose buffers can outweigh the states, by the names of DeepSpeed's fields
(deepspeed/runtime/zero/config.py). Sizes are in elements."""


_JOB = Column[Shown]("Slurm job", "job", lambda one: plain(one.trial.record.job or MISSING), is_text=True)


def outcome_sections(shown: Sequence[Shown], width: int) -> Iterator[Section]:
    """The trials that did not complete, skipped ones included."""
    rows = [(one, one) for one in shown if not completed(one.trial)]
    if not rows:
        return
    columns = [
        Column[Shown]("status", "status", _status, is_text=True),
        Column[Shown]("after", "after", _duration),
        *([_JOB] if any(one.trial.record.job for one, _ in rows) else []),
        Column[Shown]("why", "why", lambda one: why(one.trial.record), is_text=True),
    ]
    caption = "Each with its reason; a skipped trial was not started, and names the rule that it breaks."
    yield Section("Trials without figures", caption, table(columns, rows, width))


def _status(shown: Shown) -> str:
    return shown.trial.record.status.value.replace("_", " ")


def _duration(shown: Shown) -> str:
    record = shown.trial.record
    if record.started_at_s is None or record.ended_at_s is None:
        return MISSING
    return format_seconds(record.ended_at_s - record.started_at_s)


def why(record: TrialRecord) -> str:
    """Why a trial has no figures, in one line: the reason, the rule, where it happened, the bytes it was about."""
    text = record.reason or (record.failure.message if record.failure else "no reason recorded")
    rule = f" (rule {record.rule})" if record.rule else ""
    detail = _detail(record.failure) if record.failure and record.status is not Status.SKIPPED else ""
    return plain(f"{text}{rule}{detail}")


def _detail(failure: Failure) -> str:
    """Where it happened and the bytes it was about, as far as they are known."""
    parts = [
        (failure.rank is not None, f"rank {failure.rank}"),
        (failure.phase is not None, str(failure.phase)),
        (failure.step_index is not None, f"step {failure.step_index}"),
        (failure.bytes_asked is not None, f"asked {format_bytes(failure.bytes_asked)}"),
        (failure.bytes_free is not None, f"free {format_bytes(failure.bytes_free)}"),
        (bool(failure.stacks), f"the record has the stacks of {len(failure.stacks)} ranks"),
    ]
    known = [text for is_known, text in parts if is_known]
    return f" ({', '.join(known)})" if known else ""


def parity_sections(shown: Sequence[Shown], width: int) -> Iterator[Section]:
    """The losses of completed trials, held against each other."""
    rows = [(one, one) for one in shown if completed(one.trial) and losses(one.trial)]
    if not rows:
        return
    references = {one.parity.reference for one in shown if one.parity is not None}
    names = _names(shown)
    columns = [
        Column[Shown]("first loss", "first", lambda one: f"{losses(one.trial)[0]:.6f}"),
        Column[Shown]("last loss", "last", lambda one: f"{losses(one.trial)[-1]:.6f}"),
        Column[Shown]("difference", "diff", lambda one: _small(one.parity.difference) if one.parity else MISSING),
        Column[Shown]("tolerance", "tolerance", lambda one: _small(one.parity.tolerance) if one.parity else MISSING),
        Column[Shown]("gradient norm", "norm", _norm_distance),
        Column[Shown]("tolerance", None, lambda one: _small(one.parity.norm_tolerance) if one.parity else MISSING),
        Column[Shown]("verdict", "verdict", lambda one: _verdict(one, references, names), is_text=True),
    ]
    caption = (
        "Equal weights, data and global batch, so strategies may differ by rounding only. The loss of the first and "
        "the last step; the largest difference over all steps. Gradient norm: the largest distance of the norms before "
        "clipping, as a fraction of the smaller one."
    )
    yield Section("Loss parity", caption, table(columns, rows, width))


def _norm_distance(shown: Shown) -> str:
    far = None if shown.parity is None else shown.parity.norm_difference
    return MISSING if far is None else _small(far)


def _small(value: float) -> str:
    return "0" if value == 0 else f"{value:.2g}"


def _verdict(shown: Shown, references: set[str], names: Mapping[str, str]) -> str:
    if shown.parity is not None:
        reference = names.get(shown.parity.reference, shown.parity.reference)
        whom = f" with {reference}" if len(references) > 1 else ""
        if not shown.parity.is_judged:
            return "unjudged" + (f", beside {reference}" if whom else "")
        return f"{'agrees' if shown.parity.agrees else 'DISAGREES'}{whom}"
    return "reference" if shown.trial.spec.trial_id in references else "nothing to compare with"


def disbelieved(shown: Sequence[Shown]) -> list[Text]:
    """A line for each trial whose losses or gradients speak against it, to stand above all tables."""
    names = _names(shown)
    return [
        mark(
            f"{one.label}: its {one.parity.disagreeing} differ from those of "
            f"{names.get(one.parity.reference, one.parity.reference)} by {_apart(one.parity)}: "
            "do not believe its figures"
        )
        for one in shown
        if one.parity is not None and not one.parity.agrees
    ]


def _apart(parity: Parity) -> str:
    """How far apart what disagrees is, and might be."""
    found = [
        (parity.losses_agree, parity.difference, parity.tolerance),
        (parity.norms_agree, parity.norm_difference or 0.0, parity.norm_tolerance),
    ]
    texts = [f"{_small(far)} (tolerance {_small(most)})" for agrees, far, most in found if not agrees]
    return " and ".join(texts)


def _names(shown: Sequence[Shown]) -> dict[str, str]:
    """Labels by trial_id."""
    return {one.trial.spec.trial_id: one.label for one in shown}


def notes_sections(shown: Sequence[Shown]) -> Iterator[Section]:
    """Buffers in use, departures from the paper, and what was not available; each sentence once."""
    sentences: dict[str, list[str]] = {}
    for one in shown:
        for sentence in dict.fromkeys(_sentences(one)):
            sentences.setdefault(sentence, []).append(one.label)
    if sentences:
        lines = [f"{sentence} ({_where(names, shown)})" for sentence, names in sentences.items()]
        caption = "Buffers in use (sizes in elements), where DeepSpeed departs from the paper, what was not available."
        yield Section("Notes", caption, bullets(lines))


def _where(names: Sequence[str], shown: Sequence[Shown]) -> str:
    return "all" if len(names) == len(shown) > 1 else listed(names)


def _sentences(shown: Shown) -> Iterator[str]:
    ranks = shown.trial.ranks
    yield from (line for rank in ranks if (line := _buffers(rank.effective_config, shown.trial.spec.zero_stage)))
    yield from (sentence for rank in ranks for sentence in rank.departures)
    yield from (sentence for rank in ranks for sentence in rank.notes)
    yield from shown.trial.record.notes
    for summary in shown.trial.record.nvml:
        yield from _nvml_sentences(summary, node_name(shown.trial, summary))


def _nvml_sentences(summary: NvmlSummary, node: str) -> Iterator[str]:
    if summary.available and summary.reason:  # where nothing was sampled, NVML's own section says why
        yield f"NVML on {node}: {summary.reason}"
    yield from (f"NVML on {node}: {fault}" for fault in summary.faults)
    for device in summary.devices:
        for process in device.other_processes:
            yield f"GPU {device.index} of {node} was in use before the trial: {process}"


def _buffers(config: Mapping[str, Any], zero_stage: int | None) -> str:
    """The settings of `BUFFER_SETTINGS` that the engine says it runs with."""
    section = config.get("zero_optimization")
    if not isinstance(section, Mapping):
        return ""
    names = [name for name in BUFFER_SETTINGS.get(zero_stage, ()) if name in section]
    return ", ".join(f"{name} {brief(section[name])}" for name in names)
