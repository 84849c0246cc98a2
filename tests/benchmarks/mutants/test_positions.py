"""What can be mutated, and which mutants a sample has."""

import ast
from itertools import pairwise

import pytest

from benchmarks.mutants.positions import change_of, mutants_of, sample

CODE = '''"""A module."""

from __future__ import annotations

LIMIT: int | None = 3


def small(value: int | None, *others: list[int | str]) -> bool | None:
    return value is not None and value < LIMIT * 2
'''


def test_annotations_are_left_alone_and_all_that_computes_is_not() -> None:
    changed = {change_of(CODE, mutant)[1] for mutant in mutants_of("m.py", CODE)}
    assert "LIMIT: int | None = 4" in changed
    assert "return value is not None and value <= LIMIT * 2" in changed
    assert "return value is not None or value < LIMIT * 2" in changed
    assert "return value is not None and value < LIMIT + 2" in changed
    assert all(line.startswith(("LIMIT: int | None", "return")) for line in changed)


def test_every_mutant_is_a_module_that_differs_in_one_line() -> None:
    found = mutants_of("m.py", CODE)
    assert len({mutant.name for mutant in found}) == len(found) > 20
    for mutant in found:
        source = mutant.source(CODE)
        ast.parse(source)
        assert sum(a != b for a, b in zip(CODE.splitlines(), source.splitlines(), strict=True)) == 1


def test_a_sample_is_the_same_again_and_a_larger_one_holds_it() -> None:
    found = mutants_of("m.py", CODE)
    samples = [sample(CODE, found, number, seed=1) for number in (2, 5, 1000)]
    assert samples[0] == sample(CODE, reversed(found), 2, seed=1)
    for smaller, larger in pairwise(samples):
        assert larger[: len(smaller)] == smaller
    assert sorted(samples[-1], key=lambda one: one.name) == sorted(found, key=lambda one: one.name)
    assert sample(CODE, found, 5, seed=2) != samples[1]
    assert sample(CODE, [], 5, seed=1) == []


def test_places_are_drawn_before_any_has_a_second_mutant() -> None:
    found = mutants_of("m.py", CODE)
    places = {mutant.span for mutant in found}
    assert {mutant.span for mutant in sample(CODE, found, len(places), seed=1)} == places


def test_all_mutants_come_in_the_order_of_the_source() -> None:
    found = sample(CODE, mutants_of("m.py", CODE), None, seed=1)
    assert [mutant.span for mutant in found] == sorted(mutant.span for mutant in found)


def test_a_place_that_the_source_has_not_is_refused() -> None:
    with pytest.raises(ValueError, match="no such place"):
        mutants_of("m.py", CODE)[0].source("")


@pytest.mark.parametrize("number", [None, 3])
def test_what_is_no_python_any_more_is_passed_over(number: int | None) -> None:
    code = "ALL = {**dict(a=1), 'b': 2}\n"
    found = mutants_of("m.py", code)
    assert any(change_of(code, one)[1].startswith("ALL = {*dict") for one in found)
    sampled = sample(code, found, number, seed=1)
    assert sampled
    for mutant in sampled:
        ast.parse(mutant.source(code))
