"""What `zerobench emulate` accepts, and how it says no."""

from pathlib import Path
from typing import Any

import pytest

from tests.tools.refusals import one_line
from zerobench.common.errors import UserError
from zerobench.launch.emulate.request import read_request

ASKED: dict[str, Any] = {
    "gpus": "16",
    "gpu": "h200",
    "gpus_per_node": "8",
    "host_memory": None,
    "ranks": "0",
    "steps": "3",
    "name": None,
    "reports": Path("reports"),
    "tries": True,
}


def request(**asked):
    return read_request(["python", "train.py"], **{**ASKED, **asked})


@pytest.mark.parametrize(
    ("text", "ranks"), [("0", (0,)), ("0,last", (0, 15)), ("last, 0, 15", (15, 0)), ("all", tuple(range(16)))]
)
def test_the_ranks_that_play(text, ranks):
    assert request(ranks=text).ranks == ranks


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"ranks": "16"}, "--ranks: '16'; choices: comma-separated ranks from 0 to 15, last, or all"),
        ({"ranks": "first"}, "--ranks: 'first'; choices"),
        ({"steps": "0"}, "--steps: '0' is not a whole number from 1 to 1000"),
        ({"host_memory": "1"}, "--host-memory: "),
    ],
)
def test_a_wrong_word_is_one_clear_line(asked, says):
    with one_line(start=says):
        request(**asked)


def test_no_command_is_shown_an_example():
    with pytest.raises(UserError, match="COMMAND is missing; give it after two dashes: zerobench emulate"):
        read_request([], **ASKED)
