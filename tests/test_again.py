"""Which failed tests are tried once more by `make test AGAIN=yes`."""

import json
from pathlib import Path

import pytest

from tests.tools import again

RANKS = [f"tests/trials/test_parity.py::test_{name}" for name in "abcd"]
FAST = "tests/config/derived/test_batch.py::test_a"


@pytest.mark.parametrize(
    ("failed", "tried", "reason"),
    [
        (RANKS[:3], [], None),
        (RANKS, [], "4 tests failed, and at most 3 are tried again"),
        ([FAST], [], f"{FAST} starts no process, so it fails for a reason of its own"),
        (RANKS[:2], RANKS[1:2], f"{RANKS[1]} was tried again before (tried_again.txt): find the fault"),
    ],
)
def test_a_few_tests_with_processes_are_tried_again_and_none_of_them_twice(
    failed: list[str], tried: list[str], reason: str | None
) -> None:
    assert again.refusal(failed, tried) == reason


def test_what_is_tried_again_is_written_down_and_refused_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(again, "FAILED", tmp_path / "lastfailed")
    monkeypatch.setattr(again, "TRIED", tmp_path / "tried_again.txt")
    again.FAILED.write_text(json.dumps(dict.fromkeys(RANKS[:1], True)))
    again.TRIED.write_text("# names\n")
    assert again.main() == 0
    assert again.TRIED.read_text() == f"# names\n{RANKS[0]}\n"
    assert again.main() == 1
    assert "not tried again: " in capsys.readouterr().out
