"""How long `zerobench show` takes from start to table, and `write_tables`, for a run of a thousand trials.

    python benchmarks/show_scale.py [--trials 1000] [--ranks 8]

Makes a run folder of synthetic records (each rank's record is the same one but for its names), then starts a fresh
Python for each figure, so that imports count. The NVML samples of one trial are written long, the others short.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.report.sample_run import (  # noqa: E402 -- needs the path above
    HOSTNAME,
    SampleTrial,
    completed_trial,
    sample_lines,
    spec,
    write_run,
)

SHOW = """
from pathlib import Path; import sys
from rich.console import Console
from zerobench.report.terminal import show_run
show_run(Path(sys.argv[1]), Console(width=140, file=open("/dev/null", "w")))
"""
TABLES = """
from pathlib import Path; import sys
from zerobench.report.frame import write_tables
from zerobench.store import load_run
write_tables(load_run(Path(sys.argv[1])))
"""
NOTHING = "import rich.console, zerobench.store"


def make_run(path: Path, num_trials: int, num_ranks: int) -> None:
    """A run of `num_trials` trials of `num_ranks` ranks; the first has 100,000 NVML samples and more."""
    trials: list[SampleTrial] = []
    for index in range(num_trials):
        strategy = f"zero{index % 4}"
        length = 128 * (1 + index // 4)
        trials.append(completed_trial(spec(strategy, gpus_per_node=num_ranks, sequence_length=length)))
    run = write_run(path, trials, samples=False)
    lines = sample_lines(trials[0].ranks).partition("\n")
    repeats = 1 + 100_000 // (400 * num_ranks)
    run.trial(trials[0].spec.trial_id).nvml_samples(HOSTNAME).write_text(lines[0] + "\n" + lines[2] * repeats)


def seconds(code: str, run: Path, repeats: int) -> list[float]:
    """Wall-clock seconds of a fresh Python that runs `code`, sorted."""
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", code, str(run)], check=True, cwd=ROOT)
        taken.append(time.perf_counter() - begin)
    return sorted(taken)


def main() -> None:
    """Print one line for each figure: median, smallest and largest of five."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=8)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        make_run(run, asked.trials, asked.ranks)
        size = sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
        print(f"{asked.trials} trials of {asked.ranks} ranks, {size / 2**20:.0f} MiB of records")
        for name, code, repeats in (("imports", NOTHING, 5), ("show", SHOW, 5), ("write_tables", TABLES, 1)):
            taken = seconds(code, run, repeats)
            print(f"{name:13} {taken[len(taken) // 2]:6.2f} s   ({taken[0]:.2f} to {taken[-1]:.2f} s of {repeats})")


if __name__ == "__main__":
    main()
