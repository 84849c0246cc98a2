"""Notes for readers of a trial's figures: buffers in use, departures from the paper, what was not available."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from zerobench.records.records import NvmlSummary
from zerobench.records.trials import Trial
from zerobench.report.figures.nodes import node_name
from zerobench.report.figures.software import logits_notes
from zerobench.report.words.labels import brief

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


def each_once(labelled: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Sentences with the labels of the trials that share them, in the order of first sight."""
    names_by_sentence: dict[str, dict[str, None]] = {}
    for label, sentence in labelled:
        names_by_sentence.setdefault(sentence, {})[label] = None
    return {sentence: list(names) for sentence, names in names_by_sentence.items()}


def who_says(names: Sequence[str], num_trials: int, most: int) -> str:
    """The labels of those who say a sentence, `all` where they all do."""
    return "all" if len(names) == num_trials > 1 else listed(names, most)


def listed(names: Sequence[str], most: int = 6) -> str:
    """Names with commas between, the tail of a long list counted."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def sentences(trial: Trial) -> Iterator[str]:
    """Sentences on `trial`."""
    ranks = trial.ranks
    yield from (line for rank in ranks if (line := _buffers(rank.effective_config, trial.spec.zero_stage)))
    yield from (sentence for rank in ranks for sentence in rank.departures)
    yield from (sentence for rank in ranks for sentence in rank.notes)
    yield from trial.record.notes
    yield from logits_notes(trial)
    for summary in trial.record.nvml:
        yield from _nvml_sentences(summary, node_name(trial, summary))


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
