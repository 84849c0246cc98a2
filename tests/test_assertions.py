"""The lint of tests that may pass without having asserted anything, and the guard that it asks for."""

from pathlib import Path

import pytest

from tests.tools.assertions import main, may_assert_nothing
from tests.tools.at_least_one import at_least_one

EMPTY_IF_ITS_DATA_IS = {
    "a loop over what a function gave": "for row in rows():\n    assert row",
    "a loop over a fixture": "for row in given:\n    assert row",
    "a branch": "if rows():\n    assert True",
    "the second of two loops": "for one in (1, 2):\n    for row in rows(one):\n        assert row",
    "a loop with a condition": "for row in (1, 2):\n    if rows():\n        assert row",
    "a comprehension that leaves out": "for row in [x for x in (1, 2) if x > given]:\n    assert row",
    "a match with one case": "match given:\n    case 1:\n        assert True",
}
ALWAYS_ASSERT = {
    "an assertion": "assert rows()",
    "a loop that is looked at before": "assert given\nfor row in given:\n    assert row",
    "a loop over a literal": "for row in (1, 2):\n    assert row",
    "a loop over an enumeration": "for step in StepKind:\n    assert step",
    "a loop over a constant": "for row in ROWS:\n    assert row",
    "a loop over products": "for a, b in product(ROWS, range(3)):\n    assert a",
    "a guarded loop": "for row in at_least_one(given):\n    assert row",
    "both branches": "if given:\n    assert given > 1\nelse:\n    assert rows()",
    "an expected error": "with pytest.raises(ValueError):\n    rows()\nif given:\n    assert True",
    "a function of the file that asserts": "check(given)\nif given:\n    assert True",
    "examples that are drawn": "for row in drawn:\n    assert row",
}


def written(folder: Path, body: str, decorator: str = "") -> Path:
    path = folder / "test_one.py"
    indented = "\n".join(f"    {line}" for line in body.splitlines())
    path.write_text(f"ROWS = (1, 2)\ndef check(x):\n    assert x\n{decorator}def test_one(given):\n{indented}\n")
    return path


@pytest.mark.parametrize("body", EMPTY_IF_ITS_DATA_IS.values(), ids=EMPTY_IF_ITS_DATA_IS)
def test_a_test_that_may_assert_nothing_is_named_with_its_line(tmp_path: Path, body: str) -> None:
    path = written(tmp_path, body)
    assert may_assert_nothing(path) == [f"{path}:4: test_one"]


@pytest.mark.parametrize("name", ALWAYS_ASSERT)
def test_a_test_that_asserts_whatever_its_data_is_passes(tmp_path: Path, name: str) -> None:
    assert may_assert_nothing(written(tmp_path, ALWAYS_ASSERT[name], "@given(x)\n" if "drawn" in name else "")) == []


def test_each_test_of_the_project_asserts_something(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0, capsys.readouterr().out


def test_a_guarded_loop_over_nothing_fails() -> None:
    assert at_least_one(iter((1, 2))) == [1, 2]
    with pytest.raises(AssertionError, match="nothing to look at"):
        at_least_one(iter(()))
