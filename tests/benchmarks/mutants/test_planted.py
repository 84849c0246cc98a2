"""A fault that is planted by hand stands for a line that is there, and for tests that are there."""

import ast
import re

import pytest

from benchmarks.mutants.planted import Fault, faults, table
from benchmarks.mutants.trial import Verdict
from tests.tools.imports import ROOT

ALL = faults()


@pytest.mark.parametrize("fault", ALL, ids=lambda fault: f"{fault.module}: {fault.before.strip()[:40]}")
def test_a_fault_changes_one_line_that_is_there_and_leaves_python(fault: Fault) -> None:
    before, after = fault.path.read_text().splitlines(), fault.source().splitlines()
    assert ast.parse(fault.source())
    assert len(before) == len(after)
    assert sum(one != other for one, other in zip(before, after, strict=True)) == 1


@pytest.mark.parametrize("name", sorted({name for fault in ALL for name in fault.tests}))
def test_the_tests_of_a_fault_are_there(name: str) -> None:
    file, _, test = name.partition("::")
    source = (ROOT / file).read_text()
    assert re.search(rf"^def {test.partition('[')[0]}\(", source, re.MULTILINE) or not test


def test_a_line_that_is_gone_or_there_twice_is_no_place_for_a_fault() -> None:
    for before in ("no such line of code", "import"):
        with pytest.raises(ValueError, match=r"times, and not once"):
            Fault("rank/ledger/naming.py", before, "", ()).source()


def test_the_table_has_a_rate_for_each_package_and_a_line_for_each_fault() -> None:
    one, other = Fault("rank/ledger/naming.py", "a | b", "", ()), Fault("rank/strategies/zero.py", "c", "d", ())
    text = table([(one, Verdict.KILLED), (other, Verdict.KILLED), (one, Verdict.SURVIVED)])
    assert "| **rank/ledger** | 2 | 1 | 50.0 % |" in text
    assert "| **rank/strategies** | 1 | 1 | 100.0 % |" in text
    assert "| `rank/ledger/naming.py` | `a \\| b` | (nothing) | survived |" in text
