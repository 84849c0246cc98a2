"""Which view a run has, by where it prints."""

import pytest

from zerobench.cli.live import LiveView, PlainView, screen


@pytest.mark.parametrize(
    ("term", "is_terminal", "view"),
    [("xterm-256color", "1", LiveView), ("dumb", "1", PlainView), ("xterm-256color", "0", PlainView)],
)
def test_only_a_terminal_that_can_move_its_cursor_has_a_moving_screen(
    monkeypatch: pytest.MonkeyPatch, term: str, is_terminal: str, view: type[PlainView]
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("TTY_COMPATIBLE", is_terminal)
    assert type(screen()) is view
