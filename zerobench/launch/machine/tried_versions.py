"""Releases that zerobench was tried with: what is outside of them is named before anything starts.

Other releases are not refused. A ledger that reads DeepSpeed's and torch's private state may misname bytes where that
state has changed, so that whoever sees a figure should know.
"""

from collections.abc import Mapping

from zerobench.common.distribution import release_numbers
from zerobench.common.environments import version_of
from zerobench.common.training_python import training_python

TRIED = {
    "python": ("3.11", "3.12"),
    "torch": ("2.11", "2.13"),
    "deepspeed": ("0.19.7", "0.19.8"),
    "transformers": ("5.17", "5.24"),
}
"""First and last release of each under which the whole test suite, or the sweep over releases, has passed."""


def untried(versions: Mapping[str, str | None] | None = None) -> list[str]:
    """Return one line for each release outside of TRIED; `versions` default to those that ranks import.

    A release counts by as many numbers as the limit has: 2.13.1 is as 2.13.
    """
    if versions is None:
        versions = {"python": training_python().version} | {
            name: version_of(name) for name in TRIED if name != "python"
        }
    return [
        f"{name} {version} has not been tried with zerobench: {first} to {last} have"
        for name, (first, last) in TRIED.items()
        if (version := versions.get(name)) and not _is_within(version, first, last)
    ]


def _is_within(version: str, first: str, last: str) -> bool:
    low, high = release_numbers(first), release_numbers(last)
    numbers = release_numbers(version)
    return numbers[: len(low)] >= low and numbers[: len(high)] <= high
