"""Every `zerobench` command on a page is one that zerobench takes: its name, options and kinds of value."""

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from tests.tools.at_least_one import at_least_one
from tests.tools.imports import ROOT
from zerobench.app.terminal import options
from zerobench.app.terminal.app import app

ERRANDS = ROOT / "docs" / "errands.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "slurm" / "CLUSTER.md"]
_COMMAND = re.compile(r"^ {4}(?:\$ )?(?:\w+=\S+ )?(zerobench .*)$", re.MULTILINE)
_ENDS = {"|", ">", "--", "2>&1"}
"""After these stands another program."""


def commands(text: str) -> list[list[str]]:
    """The arguments of each command in an indented block, without its comment."""
    lines = _COMMAND.findall(re.sub(r"\\\n\s*", "", text))
    return [_own(shlex.split(line, comments=True)) for line in lines]


def _own(words: list[str]) -> list[str]:
    last = next((index for index, word in enumerate(words) if word in _ENDS), len(words))
    return words[1:last]


def calls(page: Path) -> list[list[str]]:
    """The page's commands, but those that only name an option of all commands, or no command in particular."""
    shown = commands(page.read_text(encoding="utf-8"))
    return [words for words in shown if not words[0].startswith("-") and words[0] != "COMMAND"]


WITH_CALLS = [page for page in PAGES if calls(page)]


def test_most_pages_show_commands() -> None:
    assert len(WITH_CALLS) > len(PAGES) / 2


@pytest.mark.parametrize("page", WITH_CALLS, ids=lambda page: page.name)
def test_a_page_shows_no_command_that_zerobench_refuses(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "choose_python", str)  # a page's training environment is not here
    known = get_command(app).commands  # type: ignore[attr-defined] # a group's
    for name, *arguments in at_least_one(calls(page)):
        assert name in known, name
        own = [*arguments, "--", "true"] if name in {"emulate", "watch"} else arguments
        known[name].make_context(name, list(own)).close()  # raises what the user would be told


def test_the_errands_take_as_many_commands_as_their_table_says() -> None:
    page = ERRANDS.read_text(encoding="utf-8")
    said = {title: int(count) for title, count in re.findall(r"^\| \[([^]]+)\].*?\) \| (\d+) \|", page, re.MULTILINE)}
    counted = {}
    for section in page.split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        block = re.search(r"(?:^ {4}.+\n)+", text, re.MULTILINE)
        assert block, title
        before = 1 if "make login" in block[0] else 2  # git clone, and pip install but on a login node
        counted[title] = before + len(block[0].splitlines())
    assert len(said) == len(counted) == 5
    assert list(said.values()) == list(counted.values())
