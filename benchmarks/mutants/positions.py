"""The mutants of a module: Cosmic Ray's operators at every place of the source that something computes with."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

_WITH_ARGUMENTS = ("VariableReplacer", "VariableInserter")
"""Operators of Cosmic Ray that want to be told of which variable, and put a random number in its place."""

Span = tuple[tuple[int, int], tuple[int, int]]
"""Line (from 1) and column (from 0) of the first character, and of the one behind the last."""


@dataclass(frozen=True)
class Mutant:
    """One change of one module."""

    module: str
    """The module's file, from the checkout's root."""
    operator: str
    occurrence: int
    """Which of the places that the operator can change, as Cosmic Ray counts them."""
    span: Span

    @property
    def name(self) -> str:
        """Unique, and the same as long as the module's source is."""
        return f"{self.module}:{self.operator}:{self.occurrence}"

    def source(self, code: str) -> str:
        """`code`, the module's own source, with the change in it."""
        mutated = mutate_code(code, _operator(self.operator), self.occurrence)
        if mutated is None:
            raise ValueError(f"{self.name}: the source has no such place")
        return str(mutated)


def mutants_of(module: str, code: str) -> list[Mutant]:
    """All mutants of a module's source, but for changes of annotations, which nothing computes with."""
    spared = list(_annotations(code))
    nodes = list(ast_nodes(get_ast(code)))
    mutants = []
    for name in operator_names():
        if name.endswith(_WITH_ARGUMENTS):
            continue
        operator = _operator(name)
        spans = (span for node in nodes for span in operator.mutation_positions(node))
        mutants += [Mutant(module, name, occurrence, span) for occurrence, span in enumerate(spans)]
    return [mutant for mutant in mutants if not any(begin <= mutant.span[0] < end for begin, end in spared)]


def sample(code: str, mutants: Iterable[Mutant], number: int | None, seed: int) -> list[Mutant]:
    """`number` of a module's mutants, each at a place of its own while there are places left; all where it is None.

    Places are drawn and not mutants: a `*` has twelve, a `<` seven and an `and` one, and neither says which matters.
    What is no Python any more (Cosmic Ray takes the stars of `{**a}` for a power) is passed over.
    """
    in_order = sorted(mutants, key=lambda mutant: (mutant.span, mutant.name))
    if number is None or not in_order:
        return [one for one in in_order if _is_python(one, code)]
    draw = random.Random(f"{seed} {in_order[0].module}")  # noqa: S311 -- a sample that can be drawn again
    places = [list(same) for _, same in groupby(in_order, key=lambda one: one.span)]
    draw.shuffle(places)
    for place in places:
        draw.shuffle(place)
    rounds = (place[turn] for turn in range(max(map(len, places))) for place in places if turn < len(place))
    return list(islice((one for one in rounds if _is_python(one, code)), number))


def _is_python(mutant: Mutant, code: str) -> bool:
    try:
        ast.parse(mutant.source(code))
    except (SyntaxError, AttributeError):  # the latter of Cosmic Ray itself, at `except module.Error`
        return False
    return True


def change_of(code: str, mutant: Mutant) -> tuple[str, str]:
    """The line before and after, for people."""
    before, after = code.splitlines(), mutant.source(code).splitlines()
    line = next((n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), mutant.span[0][0] - 1)
    return before[line].strip(), after[line].strip() if line < len(after) else ""


def _operator(name: str) -> Any:
    return get_operator(name)()


def _annotations(code: str) -> Iterator[Span]:
    for node in ast.walk(ast.parse(code)):
        notes: Sequence[ast.expr | None] = ()
        if isinstance(node, ast.AnnAssign | ast.arg):
            notes = (node.annotation,)
        elif isinstance(node, ast.FunctionDef):
            notes = (node.returns,)
        for note in notes:
            if note is not None and note.end_lineno is not None and note.end_col_offset is not None:
                yield (note.lineno, note.col_offset), (note.end_lineno, note.end_col_offset)
