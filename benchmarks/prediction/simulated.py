"""What the scripts beside it share: trials simulated without a run around them, and tables that say their origin.

A trial is laid out as a run lays it out and goes through one simulator process; its folder lies in a temporary place
and is gone afterwards, its record stays in memory.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from zerobench.common.errors import UserError
from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Category, Phase, Place, Status, StepKind
from zerobench.config.deepspeed import build_ds_config
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.optimizers import Optimizer
from zerobench.config.trial.trial import Evidence, PredictionSpec, StepsSpec, TrialSpec
from zerobench.launch.machine.environment import capture_environment
from zerobench.launch.run.setup import lay_out_trial
from zerobench.launch.run.simulations import predict
from zerobench.launch.run.stop import stop_on_signals
from zerobench.records.folder import TrialFolder
from zerobench.records.records import MemoryRow, RankRecord, TrialRecord
from zerobench.records.store import read_record

GPU = "h200"
GPUS_PER_NODE = 8
TINY: dict[str, object] = {
    "family": "gpt2",
    "name": "tiny",
    "num_layers": 2,
    "hidden_size": 64,
    "num_heads": 4,
    "vocab_size": 509,
    "tie_word_embeddings": False,
}
"""A model whose simulation is quick: for trying a script, and to let a simulator import what it needs."""

_VERSIONS = ("zerobench", "python", "torch", "deepspeed", "transformers")

Ended = Callable[[TrialRecord], None]


def gpu_trial(model: ModelSpec | str, stage: int, world_size: int, **axes: object) -> TrialSpec:
    """ZeRO `stage` on `world_size` GPUs of the catalogue, simulated in bf16 with FusedAdam; `axes` lie over that."""
    per_node = min(world_size, GPUS_PER_NODE)
    usual: dict[str, object] = {
        "model": resolve_model(model) if isinstance(model, str) else model,
        "strategy": f"zero{stage}",
        "num_nodes": world_size // per_node,
        "gpus_per_node": per_node,
        "optimizer": Optimizer.FUSED_ADAMW,
        "activation_checkpointing": True,
        "steps": StepsSpec(warmup=0, memory=1, timed=1),
        "evidence": Evidence.SIMULATED,
        "prediction": PredictionSpec(gpu=GPU),
    }
    return TrialSpec.model_validate(usual | axes)


def simulate(trials: Sequence[TrialSpec], jobs: int = 2, on_end: Ended | None = None) -> list[RankRecord]:
    """The record of each trial, in their order, `jobs` of them at a time; `on_end` hears of each as it ends.

    Raises UserError: a trial failed or was stopped, with its reason.
    """
    with _played(trials, jobs, on_end) as pairs:
        return [_read(trial, folder) for trial, folder in pairs]


def attempt(trials: Sequence[TrialSpec], jobs: int) -> Iterator[RankRecord | str]:
    """For each trial, in their order, its record, or why there is none. Raises UserError: it was stopped."""
    with _played(trials, jobs, None) as pairs:
        for trial, folder in pairs:
            ended = read_record(folder.record, TrialRecord)
            _check(trial, ended, *(status for status in Status if status is not Status.INTERRUPTED))
            yield _read(trial, folder) if ended.status is Status.COMPLETED else f"{ended.status}: {ended.reason}"


def play(trials: Sequence[TrialSpec], jobs: int, on_end: Ended) -> None:
    """The same without their records; that a trial's device has too little memory is a result as others are.

    Raises UserError: a trial failed for another reason.
    """
    with _played(trials, jobs, on_end) as pairs:
        for trial, folder in pairs:
            _check(trial, read_record(folder.record, TrialRecord), Status.COMPLETED, Status.OUT_OF_DEVICE_MEMORY)


@contextmanager
def _played(
    trials: Sequence[TrialSpec], jobs: int, on_end: Ended | None
) -> Iterator[list[tuple[TrialSpec, TrialFolder]]]:
    """Trials and their folders, which are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="zerobench-") as place, stop_on_signals() as stop:
        pairs = [(trial, TrialFolder(Path(place, f"{index}-{trial.trial_id}"))) for index, trial in enumerate(trials)]
        for trial, folder in pairs:
            lay_out_trial(folder, trial, build_ds_config(trial) if trial.zero_stage is not None else None)
        predict(pairs, "benchmark", jobs, stop, lambda _: None, on_end or (lambda _: None))
        yield pairs


def _check(trial: TrialSpec, ended: TrialRecord, *expected: Status) -> None:
    if ended.status not in expected:
        raise UserError(f"{trial.trial_id}: {ended.status}: {ended.reason}")


def _read(trial: TrialSpec, folder: TrialFolder) -> RankRecord:
    _check(trial, read_record(folder.record, TrialRecord), Status.COMPLETED)
    return read_record(folder.rank_record(trial.prediction.rank), RankRecord)


def device_rows(rank: RankRecord, step: StepKind, phase: Phase) -> dict[Category, MemoryRow]:
    """The rank's device memory over one phase, by category, `total` among them."""
    return {row.category: row for row in rank.memory if (row.step, row.phase, row.place) == (step, phase, Place.DEVICE)}


def num_params(rank: RankRecord) -> int:
    """Parameters of the model as the rank built it."""
    if rank.parameters is None:
        raise UserError(f"{rank.trial_id}: its record does not say how many parameters the model has")
    return rank.parameters.total


def origin() -> list[str]:
    """Lines of a list that say which machine, which versions and when."""
    environment = capture_environment()
    versions, machine, commit = environment["versions"], environment["machine"], environment["git"]["zerobench"]
    named = [f"{name} {versions[name]}" for name in _VERSIONS]
    at = [] if commit is None else [f"commit {commit['commit'][:12]}{' and changes' if commit['dirty'] else ''}"]
    cpu = machine["cpu"]
    return [
        f"- machine: {cpu['model']}, {cpu['usable_cores']} cores, {format_bytes(machine['memory_bytes'])} of memory",
        f"- versions: {', '.join(named + at)}",
        f"- date: {time.strftime('%Y-%m-%d %H:%M %Z')}",
        "",
    ]


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], texts: int = 1) -> list[str]:
    """Lines of a table in Markdown, its first `texts` columns texts and the others numbers, and an empty line."""
    rule = ["---" if index < texts else "---:" for index in range(len(headers))]
    lines = [headers, rule, *([str(cell) for cell in row] for row in rows)]
    return [*(f"| {' | '.join(line)} |" for line in lines), ""]


def gb(num_bytes: float, digits: int = 3) -> str:
    """Bytes in GB of 10^9, the paper's unit."""
    return f"{num_bytes / 1e9:,.{digits}f}"
