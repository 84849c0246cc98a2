"""How long `zerobench show` takes from start to table, `write_tables`, a resume with nothing to do and a report, and
what memory, as runs grow.

    python benchmarks/show_scale.py [--trials 100,1000,10000,100000] [--ranks 8] [--repeats 5]

Makes run folders of synthetic records (each rank's record is the same one but for its names) in a temporary folder,
then starts a fresh Python for each figure, so that imports count. Up to a thousand trials have `--ranks` full records
each; from a thousand on, one rank with a small record: what grows is then the number of trials, and the disk can hold
it. Ratios are between runs of the same kind. The NVML samples of one trial are written long.

Each figure is the smallest of its repeats, with the largest beside it: whatever else the machine does only ever adds.
CPU seconds (user and system) stand beside the wall clock's, since a loaded machine stretches them less. Memory is the
peak resident size of that process.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.report.sample_run import (  # noqa: E402 -- needs the path above
    HOSTNAME,
    RUN_ID,
    SampleTrial,
    completed_trial,
    sample_lines,
    spec,
    write_run,
)
from zerobench.common.vocabulary import Category, StepKind  # noqa: E402
from zerobench.records.store import Plan, PlanEntry  # noqa: E402

SHOW = """
import sys
from zerobench.app.terminal.app import main
main(["show", sys.argv[1]])
"""
TABLES = """
from pathlib import Path; import sys
from zerobench.report.export.tidy_tables import write_tables
from zerobench.records.store import load_run
write_tables(load_run(Path(sys.argv[1])))
"""
RESUME = SHOW.replace('"show", sys', '"run", "--resume", sys')
REPORT = SHOW.replace('"show", sys.argv[1]', '"report", sys.argv[1]')
JSON = REPORT.replace("sys.argv[1]", 'sys.argv[1], "--json"')
NOTHING = "import rich.console, zerobench.records.store"
FIGURES = {"show": SHOW, "write_tables": TABLES, "resume": RESUME, "report": REPORT, "report --json": JSON}
"""A resume comes behind the tables, which then stand."""
MOST_FULL = 1000
"""Trials up to which each rank's record is a full one."""


@dataclass(frozen=True)
class Usage:
    """What one process took."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


def make_run(path: Path, num_trials: int, num_ranks: int, *, small: bool = False) -> None:
    """A run of `num_trials` trials of `num_ranks` ranks; the first has 100,000 NVML samples and more.

    `small` leaves of a rank's record what a steady step has, by total and three categories.
    """
    template = _template(num_ranks, small=small)
    run = write_run(path, [], samples=False)
    entries = []
    for trial_id, texts in _texts(template, num_trials, num_ranks):
        folder = run.trial(trial_id).path
        folder.mkdir()
        entries.append(PlanEntry(trial_id=trial_id))
        for name, text in texts.items():
            (folder / name).write_text(text)
    run.plan.write_text(Plan(run_id=RUN_ID, trials=entries).model_dump_json())
    lines = sample_lines(template.ranks).partition("\n")
    repeats = 1 + 100_000 // (400 * num_ranks)
    run.trial(entries[0].trial_id).nvml_samples(HOSTNAME).write_text(lines[0] + "\n" + lines[2] * repeats)


def _template(num_ranks: int, *, small: bool) -> SampleTrial:
    trial = completed_trial(spec("zero0", gpus_per_node=num_ranks))
    if not small:
        return trial
    kept = {Category.TOTAL, Category.PARAMETERS, Category.GRADIENTS, Category.ACTIVATIONS}
    ranks = [
        rank.model_copy(
            update={
                "memory": [row for row in rank.memory if row.step is StepKind.STEADY and row.category in kept],
                "process_memory": [],
                "device_memory": [],
                "marks": rank.marks[-3:],
            }
        )
        for rank in trial.ranks
    ]
    return SampleTrial(trial.spec, trial.record, ranks)


def _texts(template: SampleTrial, num_trials: int, num_ranks: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Trial id and files of each trial; records are the template's text with other names in it."""
    old = (template.spec.trial_id, template.spec.config_hash)
    record = template.record.model_dump_json()
    ranks = {f"rank_{rank.rank}.json": rank.model_dump_json() for rank in template.ranks}
    for index in range(num_trials):
        length = 128 * (1 + index // 4)
        trial_spec = spec(f"zero{index % 4}", gpus_per_node=num_ranks, sequence_length=length)
        new = (trial_spec.trial_id, trial_spec.config_hash)
        named = {name: text.replace(old[0], new[0]) for name, text in ranks.items()}
        named["record.json"] = record.replace(old[0], new[0]).replace(old[1], new[1])
        yield new[0], {"trial.json": trial_spec.model_dump_json(), **named}


def take(code: str, run: Path) -> Usage:
    """Start a fresh Python that runs `code`, and wait for its end."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(run)], cwd=ROOT, env=os.environ | {"COLUMNS": "140"}, stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"exit status {process.returncode}")
    return Usage(wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def best(taken: Sequence[Usage]) -> Usage:
    """The smallest of each figure."""
    return Usage(min(t.wall_s for t in taken), min(t.cpu_s for t in taken), min(t.peak_bytes for t in taken))


def _line(name: str, taken: Sequence[Usage], before: Usage | None, factor: float) -> str:
    """One figure; with one of a smaller run before it, how it grew for each ten times as many trials."""
    least = best(taken)
    most_s = max(usage.wall_s for usage in taken)
    wall = f"{least.wall_s:.2f} s" + (f" (to {most_s:.2f})" if len(taken) > 1 else "")
    shown = f"  {name:13} {wall:>18} {least.cpu_s:8.2f} s CPU {least.peak_bytes / 2**20:7.0f} MiB"
    if before is None:
        return shown
    grown = (least.cpu_s / before.cpu_s, least.peak_bytes / before.peak_bytes)
    return f"{shown}   x {grown[0]:.1f} CPU, x {grown[1]:.1f} memory for x {factor:g} trials"


def measure(trials: Sequence[int], num_ranks: int, repeats: int) -> None:
    """Print the figures of a run of each size; the ratios are between runs of one kind of record."""
    print("imports alone")
    print(_line("rich, store", [take(NOTHING, ROOT) for _ in range(repeats)], None, 1))
    before: dict[tuple[str, bool], tuple[int, Usage]] = {}
    for num_trials in trials:
        kinds = [False] if num_trials < MOST_FULL else [False, True] if num_trials == MOST_FULL else [True]
        for small in kinds:
            with tempfile.TemporaryDirectory() as folder:
                run = Path(folder) / "run"
                make_run(run, num_trials, 1 if small else num_ranks, small=small)
                size = sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
                kind = "one rank, small records" if small else f"{num_ranks} ranks"
                print(f"{num_trials:,} trials of {kind}: {size / 2**20:.0f} MiB", flush=True)
                for name, code in FIGURES.items():
                    taken = [
                        take(code, run) for _ in range(repeats if num_trials <= MOST_FULL and name == "show" else 1)
                    ]
                    smaller, least = before.get((name, small), (0, None))
                    print(_line(name, taken, least, num_trials / smaller if smaller else 1), flush=True)
                    before[name, small] = (num_trials, best(taken))


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", default="100,1000,10000,100000", help="sizes of the runs, smallest first")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5, help="of `show` up to a thousand trials; else one")
    asked = parser.parse_args()
    measure([int(size) for size in asked.trials.split(",")], asked.ranks, asked.repeats)


if __name__ == "__main__":
    main()
