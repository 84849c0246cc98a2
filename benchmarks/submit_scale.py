"""How long `zerobench submit` takes from start to its last line, as sweeps grow.

    python benchmarks/submit_scale.py [--trials 100,1000,10000] [--repeats 5]

Each figure is that of a fresh Python that expands a sweep, writes its run folder and submits it; Slurm's programs are
small shell scripts that answer at once, so that what is timed is ours. Every trial differs in its work, so that none
is spared. The folders lie in a temporary folder (TMPDIR), and go after each.

Wall time and CPU time (user and system) are shown as smallest, median and largest of the repeats: whatever else the
machine does only ever adds. The last line says whether the smallest wall time of the largest sweep is below 5 s.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.launch.slurm.standins import install  # noqa: E402 -- needs the path above
from zerobench.launch.slurm.jobs import read_submission, read_tasks  # noqa: E402
from zerobench.records.folder import RunFolder  # noqa: E402

GOAL_S = 5.0
_STRATEGIES = ["zero0", "zero1", "zero2", "zero3"]
_WORLD_SIZES = [1, 2, 4, 8, "auto"]
_PER_LENGTH = len(_STRATEGIES) * len(_WORLD_SIZES)


@dataclass(frozen=True)
class Usage:
    """What one submission took."""

    wall_s: float
    cpu_s: float


def sweep_of(num_trials: int) -> dict[str, object]:
    """A sweep of `num_trials` trials on one and on four nodes, each with work of its own."""
    lengths = num_trials // _PER_LENGTH
    if lengths * _PER_LENGTH != num_trials or not lengths:
        raise SystemExit(f"--trials: {num_trials} is no multiple of {_PER_LENGTH}")
    buckets = next(count for count in range(10, 0, -1) if lengths % count == 0)
    axes = {
        "model": "llama-1b",
        "strategy": _STRATEGIES,
        "world_size": _WORLD_SIZES,
        "sequence_length": [16 * number for number in range(1, lengths // buckets + 1)],
        "ds_config": {"reduce_bucket_size": [1_000_000 * number for number in range(1, buckets + 1)]},
    }
    return {"name": f"scale-{num_trials}", "axes": axes}


def submit(num_trials: int) -> Usage:
    """Submit a sweep of `num_trials` trials once."""
    with tempfile.TemporaryDirectory(prefix="zerobench-submit-") as name:
        folder = Path(name)
        (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep_of(num_trials)), encoding="utf-8")
        programs = install(folder / "programs")
        environment = os.environ | {"PATH": f"{programs.folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "zerobench", "submit", "sweep.yaml", "--nodes", "4", "--gpus-per-node", "8"]
        taken = _timed(command, folder, environment)
        _check(folder / "reports", num_trials)
    return taken


def _timed(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Usage:
    before, began = os.times(), time.perf_counter()
    subprocess.run(command, cwd=folder, env=dict(environment), stdout=subprocess.DEVNULL, check=True)
    wall_s, after = time.perf_counter() - began, os.times()
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return Usage(wall_s, cpu_s)


def _check(reports: Path, num_trials: int) -> None:
    """A submission that lost a trial is none."""
    [path] = reports.iterdir()
    run = RunFolder(path)
    names = [job.name for job in read_submission(run).jobs if job.kind != "report"]
    submitted = [trial_id for name in names for task in read_tasks(run.slurm_tasks(name)) for trial_id in task]
    if len(set(submitted)) != num_trials or len(submitted) != num_trials:
        raise SystemExit(f"{len(submitted)} trials were submitted, and {num_trials} asked for")


def _spread(values: Sequence[float]) -> str:
    return f"{min(values):.2f} / {statistics.median(values):.2f} / {max(values):.2f}"


def main() -> int:
    """Print the table; 1 where the goal was missed."""
    parser = argparse.ArgumentParser(description="Time zerobench submit against stand-ins of Slurm's programs.")
    parser.add_argument("--trials", default="100,1000,10000", help="sizes of the sweeps")
    parser.add_argument("--repeats", type=int, default=5, help="submissions of each sweep")
    asked = parser.parse_args()
    sizes = sorted(int(size) for size in asked.trials.split(","))
    print(f"{'trials':>8}  {'wall s (smallest / median / largest)':<38}  CPU s")
    smallest = 0.0
    for size in sizes:
        taken = [submit(size) for _ in range(asked.repeats)]
        smallest = min(usage.wall_s for usage in taken)
        walls, cpus = _spread([usage.wall_s for usage in taken]), _spread([usage.cpu_s for usage in taken])
        print(f"{size:>8,}  {walls:<38}  {cpus}")
    reached = smallest < GOAL_S
    print(f"{sizes[-1]:,} trials in {smallest:.2f} s: {'below' if reached else 'NOT below'} {GOAL_S:g} s")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
