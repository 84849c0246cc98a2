"""What each DeepSpeed release takes for the same forty configurations, by simulation: which upgrade cost whom what.

    python benchmarks/versions/matrix.py measure 0.18.9 0.19.8     # peaks.csv; some minutes a release on two cores
    python benchmarks/versions/matrix.py show                      # docs/deepspeed-versions.md and its chart

Each release is installed by pip, without what it depends on, into a folder of its own (--folder), and plays with the
torch and transformers that are here. Its rows of peaks.csv take the place of earlier ones. Where a release cannot play
a configuration, its row says why.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.prediction.simulated import attempt  # noqa: E402 -- as a script it is started from anywhere
from benchmarks.versions.cells import cells, figures  # noqa: E402
from zerobench.records.records import RankRecord  # noqa: E402
from zerobench.report.words.cells import as_cell, as_text, quoting_of  # noqa: E402

PEAKS = Path(__file__).with_name("peaks.csv")
_KEYS = ("deepspeed", "cell", "failure")
_CACHE = Path.home() / ".cache" / "zerobench" / "deepspeed"

Row = dict[str, str]


def main() -> None:
    """Measure releases, play the cells in one of them, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    measure = verbs.add_parser("measure", help="install releases and play the cells in each")
    measure.add_argument("releases", nargs="+", metavar="RELEASE")
    measure.add_argument("--folder", type=Path, default=_CACHE, help="where releases are installed")
    play = verbs.add_parser("play", help="play the cells with the DeepSpeed that is found first")
    for command in (measure, play):
        command.add_argument("--jobs", type=int, default=2)
        command.add_argument(
            "--only", action="append", default=[], metavar="PATTERN", help="cells whose name is like one of these"
        )
        command.add_argument("--missing", action="store_true", help="cells without a row")
        command.add_argument("--peaks", type=Path, default=PEAKS, help="the table that rows are added to")
    verbs.add_parser("show", help="write the page of docs/ and its chart")
    asked = parser.parse_args()
    if asked.verb == "show":
        from benchmarks.versions.pages import write_pages  # noqa: PLC0415 -- a chart's library, which players can spare

        write_pages(read(PEAKS))
    elif asked.verb == "play":
        _play(asked.jobs, asked.peaks, asked.only or ["*"], missing=asked.missing)
    else:
        options = ["--jobs", str(asked.jobs), "--peaks", asked.peaks, *(["--missing"] * asked.missing)]
        for release in asked.releases:
            _measure(release, asked.folder, [*options, *(f"--only={text}" for text in asked.only)])


def _measure(release: str, folder: Path, options: list[str | Path]) -> None:
    """In a process of its own, in which that release is found before any other, and compiles nothing of ours anew."""
    place = folder / release
    if not (place / "deepspeed").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--target", str(place)]
        subprocess.run([*command, f"deepspeed=={release}"], env=os.environ | {"DS_BUILD_OPS": "0"}, check=True)
    added = {"PYTHONPATH": f"{place}{os.pathsep}{ROOT}", "TORCH_EXTENSIONS_DIR": str(folder / "kernels" / release)}
    subprocess.run([sys.executable, __file__, "play", *options], env=os.environ | added, check=True)


def _play(jobs: int, peaks: Path, only: Sequence[str], *, missing: bool) -> None:
    release = version("deepspeed")  # what the path finds first, without the seconds that its import takes
    there = {row["cell"] for row in read(peaks) if row["deepspeed"] == release and missing}
    chosen = {
        name: trial
        for name, trial in cells().items()
        if name not in there and any(fnmatch(name, pattern) for pattern in only)
    }
    rows = [_row(release, name, rank) for name, rank in zip(chosen, attempt([*chosen.values()], jobs), strict=True)]
    kept = [row for row in read(peaks) if row["deepspeed"] != release or row["cell"] not in chosen]
    _write(peaks, [*kept, *rows])
    print(f"DeepSpeed {release}: {sum(not row['failure'] for row in rows)} of {len(rows)} configurations", flush=True)


def _row(release: str, name: str, rank: RankRecord | str) -> Row:
    row = {"deepspeed": release, "cell": name, "failure": rank if isinstance(rank, str) else ""}
    return row | ({} if isinstance(rank, str) else {key: str(value) for key, value in figures(rank).items()})


def read(peaks: Path) -> list[Row]:
    """The rows of `peaks`, none where it is not there; what a row does not have is empty."""
    if not peaks.exists():
        return []
    with peaks.open(encoding="utf-8", newline="") as file:
        return [{name: as_text(cell) for name, cell in row.items()} for row in csv.DictReader(file)]


def _write(peaks: Path, rows: Iterable[Mapping[str, str]]) -> None:
    """In the order of releases and cells."""
    order = list(cells())
    ordered = sorted(rows, key=lambda row: (_numbers(row["deepspeed"]), order.index(row["cell"])))
    columns = list(dict.fromkeys([*_KEYS, *(key for row in ordered for key in row)]))
    with peaks.open("w", encoding="utf-8", newline="") as file:
        quoting = quoting_of(row["failure"] for row in ordered)
        table = csv.DictWriter(file, columns, restval="", lineterminator="\n", quoting=quoting)
        table.writeheader()
        table.writerows({**row, "failure": as_cell(row["failure"])} for row in ordered)


def _numbers(release: str) -> list[int]:
    return [int(part) for part in release.partition("+")[0].split(".")]


if __name__ == "__main__":
    main()
