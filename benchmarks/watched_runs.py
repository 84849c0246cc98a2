"""`zerobench run` of one trial, on a terminal, which shows the live view, and into a pipe, which shows lines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import yaml

from benchmarks.launches import ROOT, Bench
from tests.tools.terminal import on_a_terminal, terminal_environment
from zerobench.records.folder import RunFolder
from zerobench.records.records import RankRecord

VIEWS = ("live", "piped")
ZEROBENCH = "zerobench"
"""The module that is run."""


def watched_run(bench: Bench, model: str, strategy: str, view: str, pair: int) -> dict[str, float | str | int]:
    """The seconds that rank 0's timed steps took, the pauses between them included, and what was printed.

    Raises SystemExit with the end of what it printed: the run failed.
    """
    folder = bench.folder / f"{view}-{strategy}-{pair}"
    folder.mkdir()
    sweep = folder / "sweep.yaml"
    sweep.write_text(yaml.safe_dump(_sweep(bench, model, strategy)), encoding="utf-8")
    command = [sys.executable, "-m", ZEROBENCH, "run", str(sweep), "--reports", str(folder / "reports")]
    environment = terminal_environment() | {"PYTHONPATH": str(ROOT)}
    if view == "live":
        printed, code = on_a_terminal(command, environment)
    else:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        printed, code = done.stdout + done.stderr, done.returncode
    if code:
        raise SystemExit(f"{' '.join(command)}\nexit code {code}:\n{printed[-3000:]}")
    return {"view": view, "pair": pair, "timed_s": _timed_s(folder), "printed_bytes": len(printed)}


def _sweep(bench: Bench, model: str, strategy: str) -> dict[str, object]:
    spec = bench.trial(strategy)
    return {
        "name": "watched",
        "axes": {
            "model": model,
            "strategy": strategy,
            "world_size": spec.world_size,
            "micro_batch_size": spec.micro_batch_size,
            "sequence_length": spec.sequence_length,
            "precision": spec.precision.value,
        },
        "steps": {"warmup": spec.steps.warmup, "timed": spec.steps.timed, "memory": spec.steps.memory},
    }


def _timed_s(folder: Path) -> float:
    """From the first timed step's start to the last one's end, on rank 0."""
    [run] = (folder / "reports").iterdir()
    [trial] = json.loads((run / "plan.json").read_text(encoding="utf-8"))["trials"]
    record = RankRecord.model_validate_json(RunFolder(run).trial(trial["trial_id"]).rank_record(0).read_bytes())
    timed = [mark for mark in record.marks if mark.kind == "timed"]
    return timed[-1].end_s - timed[0].start_s
