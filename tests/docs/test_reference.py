"""The reference is made from the code, and leaves nothing of it out."""

import pytest
from typer.main import get_command

from docs import reference
from zerobench.app.terminal.app import app
from zerobench.app.terminal.fields import FIELDS
from zerobench.common.vocabulary import Category
from zerobench.config.derived.strategy import STRATEGIES
from zerobench.config.models.presets import PRESETS
from zerobench.report.export import schema

PAGES = reference.pages()


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("strategies", STRATEGIES),
        ("categories", [str(category) for category in Category]),
        ("columns", [*schema.MEMORY, *schema.TRIALS, *schema.ERRORS, *schema.NVML]),
        ("models", PRESETS),
        ("json", [path for found in FIELDS.values() for path in found]),
    ],
)
def test_a_page_of_the_reference_names_all_that_there_is(page: str, names: object) -> None:
    assert [name for name in names if f"| `{name}` |" not in PAGES[page]] == []  # type: ignore[attr-defined]


def test_every_category_is_explained_in_the_code() -> None:
    words = reference.member_words(Category)
    assert [category for category in Category if len(words.get(category, "")) < 20] == []


def test_every_command_is_there_with_its_options() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined] # a group's
    text = PAGES["commands"]
    assert [name for name in commands if f"\n## {name}\n" not in text] == []
    options = [option for command in commands.values() for one in command.params for option in one.opts]
    assert [option for option in options if option.startswith("--") and option not in text] == []


def test_the_sweep_page_has_the_document_and_the_words_under_it() -> None:
    text = PAGES["sweep-files"]
    assert "    axes:   " in text
    assert "`model` and `strategy` are required" in text


def test_a_cell_with_a_bar_stays_one_cell() -> None:
    assert reference.table(["a"], [["x | y"]]).splitlines()[-1] == r"| x \| y |"
