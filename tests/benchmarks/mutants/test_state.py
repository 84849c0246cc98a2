"""Verdicts are kept at once, and hold as long as the module and its tests are what they were."""

from pathlib import Path

import pytest

from benchmarks.mutants.mutants import main
from benchmarks.mutants.positions import Mutant
from benchmarks.mutants.state import Key, Verdicts
from benchmarks.mutants.table import Row, rate, table
from benchmarks.mutants.trial import Verdict

MUTANTS = [Mutant("zerobench/common/units.py", "core/AddNot", number, ((1, 0), (1, 1))) for number in range(4)]
KEY = Key("module", "tests")
KILLED, SURVIVED, STILLBORN = Verdict.KILLED, Verdict.SURVIVED, Verdict.STILLBORN


def test_a_run_that_is_cut_short_goes_on_where_it_was(tmp_path: Path) -> None:
    file = tmp_path / "new" / "verdicts.jsonl"
    Verdicts(file).add(MUTANTS[0], KEY, KILLED)
    again = Verdicts(file)
    assert (again.of(MUTANTS[0], KEY), again.of(MUTANTS[1], KEY)) == (KILLED, None)
    again.add(MUTANTS[0], KEY, SURVIVED)
    assert Verdicts(file).of(MUTANTS[0], KEY) is SURVIVED


@pytest.mark.parametrize("trusts", [False, True])
def test_other_tests_or_another_module_want_another_try(tmp_path: Path, trusts: bool) -> None:
    kept = Verdicts(tmp_path / "verdicts.jsonl", trusts_the_killed=trusts)
    kept.add(MUTANTS[0], KEY, KILLED)
    kept.add(MUTANTS[1], KEY, SURVIVED)
    more_tests, other_module = Key("module", "more tests"), Key("other", "tests")
    assert kept.of(MUTANTS[0], more_tests) is (KILLED if trusts else None)
    assert kept.of(MUTANTS[1], more_tests) is None
    assert (kept.of(MUTANTS[0], other_module), kept.of(MUTANTS[1], other_module)) == (None, None)
    assert [kept.last(MUTANTS[1], key) for key in (KEY, more_tests, other_module)] == [SURVIVED, SURVIVED, None]
    assert kept.last(MUTANTS[2], KEY) is None


def test_the_table_counts_what_could_be_killed() -> None:
    found = dict(zip(MUTANTS, (KILLED, KILLED, SURVIVED, STILLBORN), strict=True))
    rows = [
        Row("common", "zerobench/common/units.py", 40, found),
        Row("common", "zerobench/common/other.py", 2, {MUTANTS[0]: None}),
    ]
    assert (rate(rows).killed, rate(rows).survived) == (2, 1)
    text = table(rows, "a sample")
    assert "| **common** | 42 | 4 | 1 | 2 | 1 | 66.7 % |" in text
    assert "| `common/units.py` | 40 | 4 | 1 | 2 | 1 | 66.7 % |" in text
    assert "| `common/other.py` | 2 | 0 | 0 | 0 | 0 | - |" in text


def test_a_package_that_is_not_mutated_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["mutants.py", "estimate/memories"])
    assert main() == 2
    assert capsys.readouterr().err.startswith(
        "package: 'estimate/memories' is not known; did you mean 'estimate/memory'?"
    )
