"""What an error says of the choices."""

import pytest

from zerobench.common.errors import FEW, choices_for, unknown_choice

MANY = [f"llama-{size}b" for size in range(1, FEW + 2)]


def test_few_choices_are_all_listed_the_nearest_first() -> None:
    told = str(unknown_choice("strategy", "zer1", ["zero1", "ddp"], "zerobench strategies"))
    assert told == "strategy: 'zer1' is not known; did you mean 'zero1'? choices: zero1, ddp"
    assert choices_for("xx", MANY[:FEW], "zerobench models") == f"choices: {', '.join(MANY[:FEW])}"
    assert choices_for("xx", []) == "choices: none"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("lama-7b", "did you mean 'llama-7b'?"),
        ("llama-b", "did you mean 'llama-9b' or 'llama-8b' or 'llama-7b'?"),
        ("xx", "choices: llama-1b, llama-2b, llama-3b, llama-4b, llama-5b, ...;"),
    ],
)
def test_of_many_choices_the_near_ones_are_named_or_some_and_what_lists_all(value: str, told: str) -> None:
    assert choices_for(value, MANY, "zerobench models") == f"{told} all {len(MANY)}: zerobench models"


def test_many_choices_that_nothing_else_lists_are_listed() -> None:
    assert choices_for("xx", MANY) == f"choices: {', '.join(MANY)}"


def test_who_knows_the_near_ones_better_says_them() -> None:
    assert choices_for("h200x", MANY, "zerobench models", ["H200 SXM"]).startswith("did you mean 'H200 SXM'? all")
    assert choices_for("llama-7b", MANY, "zerobench models", []).startswith("choices: llama-1b")
