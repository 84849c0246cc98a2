"""Explanations of the peaks of real runs, so that a change of one shows as the lines that it changes.

`python -m tests.report.explain.test_golden` writes golden/explained.json again, and whoever does so explains each line
that then differs.
"""

import json
from pathlib import Path

import pytest

from tests.report.explain.runs import BUCKETS, QUICKSTART
from zerobench.records.store import load_run
from zerobench.report.explain.find import named_trials
from zerobench.report.explain.trial import explain

GOLDEN = Path(__file__).parent / "golden" / "explained.json"
COMPARED = Path(__file__).parents[1] / "figures" / "strategies" / "records"


def told(path: Path) -> dict[str, list[str]]:
    """The arithmetic of each category at each trial's peak, on the device and, of what is offloaded, on the host."""
    run = load_run(path)
    names = [one.trial.trial_id for one in named_trials(run)]
    topics = {name: [one for one in explain(run, name) if "memory at the peak" in one.title] for name in names}
    return {name: [line.text for one in found for line in one.lines] for name, found in topics.items()}


@pytest.mark.parametrize("path", [BUCKETS, QUICKSTART, COMPARED], ids=lambda path: path.name)
def test_these_terms_make_up_the_peaks_of_real_runs(path: Path) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert told(path) == golden[path.name]


if __name__ == "__main__":
    found = {path.name: told(path) for path in (BUCKETS, QUICKSTART, COMPARED)}
    GOLDEN.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
