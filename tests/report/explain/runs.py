"""Real runs to explain, as they were left on disk but for names of machines and what no explanation reads.

`buckets`: gpt2-350m on eight simulated H200, stages 2 and 3 with reduce buckets of 5e7 and 5e8 elements, and stage 2
with its optimizer on the CPU. `quickstart`: the shipped sweep as two CPU ranks measured it, stages 0 to 3 with small
buckets, and stage 3 with DeepSpeed's own.
"""

from functools import cache
from pathlib import Path

from zerobench.app.search.closed_forms import ClosedForms
from zerobench.records.store import load_run
from zerobench.report.explain.find import NamedTrial, find_trial, named_trials
from zerobench.report.explain.topic import Topic, as_data, as_text
from zerobench.report.explain.trial import explain

RUNS = Path(__file__).with_name("records")
BUCKETS, QUICKSTART = RUNS / "buckets", RUNS / "quickstart"

SMALL_2, LARGE_2 = "zero2 reduce_bucket=5e7", "zero2 reduce_bucket=5e8"
SMALL_3, LARGE_3 = "zero3 reduce_bucket=5e7", "zero3 reduce_bucket=5e8"
OFFLOADED = "zero2 opt=cpu"


def named(path: Path, name: str) -> NamedTrial:
    """One trial of it."""
    return find_trial(name, named_trials(load_run(path)))


@cache
def told(path: Path, name: str, other: str | None = None) -> list[Topic]:
    """What is said of a trial, or of two."""
    run = load_run(path)
    return explain(run, name, None if other is None else (run, other), estimates=ClosedForms())


def text(path: Path, name: str, other: str | None = None) -> str:
    """The same as one line of text."""
    return " ".join(as_text(told(path, name, other)).split())


def data(path: Path, name: str, other: str | None = None) -> dict[str, object]:
    """The same as data."""
    return as_data(told(path, name, other))
