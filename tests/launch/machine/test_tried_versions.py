"""Releases outside of those that were tried are named, each in one line."""

import pytest

from tests.tools.known import known
from zerobench.common.environments import version_of
from zerobench.launch.machine.tried_versions import TRIED, untried


@pytest.mark.parametrize(
    ("name", "version", "is_tried"),
    [
        ("torch", "2.10.1", False),
        ("torch", "2.11.0+cu130", True),
        ("torch", "2.13.1", True),
        ("torch", "2.14.0", False),
        ("torch", "3.0", False),
        ("deepspeed", "0.19.6", False),
        ("deepspeed", "0.19.7", True),
        ("deepspeed", "0.19.8+unknown", True),
        ("deepspeed", "0.19.9", False),
        ("transformers", "4.57.6", False),
        ("transformers", "5.24.1", True),
        ("python", "3.10.14", False),
        ("python", "3.12.9", True),
        ("python", "3.13.0", False),
        ("torch", None, True),
    ],
)
def test_a_release_outside_of_those_tried_is_named_with_the_first_and_the_last(
    name: str, version: str | None, is_tried: bool
) -> None:
    first, last = TRIED[name]
    line = f"{name} {version} has not been tried with zerobench: {first} to {last} have"
    assert untried({name: version}) == ([] if is_tried else [line])


def test_what_is_installed_here_has_been_tried() -> None:
    assert known(version_of("torch")).startswith("2.1")
    assert untried() == []
