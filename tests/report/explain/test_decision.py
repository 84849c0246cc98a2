"""A decision that is kept with a run is the run's for as long as the run has the trials that were judged."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from zerobench.records.folder import RunFolder
from zerobench.report.explain.decision import Decision, keep, stored
from zerobench.report.explain.decisions import decisions_among


@pytest.mark.parametrize(
    ("judged", "is_current"), [(["b", "a"], True), (["a"], False), (["a", "b", "c"], False), ([], False)]
)
def test_a_kept_decision_is_out_of_date_with_trials_more_or_fewer_than_were_judged(
    tmp_path: Path, judged: list[str], is_current: bool
) -> None:
    decision = Decision(configuration="zero2", reason="it fits", judged=["a", "b"])
    keep(RunFolder(tmp_path), decision)
    found = stored(SimpleNamespace(folder=RunFolder(tmp_path)), judged)  # type: ignore[arg-type] # all that it reads
    assert found == (decision if is_current else None)


def test_nothing_is_decided_among_predictions_of_which_none_fits() -> None:
    refused = SimpleNamespace(fits=False, is_reference=False)
    assert decisions_among([refused, refused], {}) == []  # type: ignore[list-item] # all that it reads
