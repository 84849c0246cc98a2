"""Finds tests that pass without having asserted anything: `python -m tests.tools.assertions`, a part of `make check`.

A test whose only assertions stand in a loop or an `if` passes when the loop has nothing to go over. Each test needs one
assertion that is reached whatever its data is: outside of loops and branches, or in a loop that cannot be empty (over a
literal, an enumeration, or a constant of the file that is one of these). `assert rows` before the loop is enough, as is
`for row in at_least_one(rows)`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.tools.at_least_one import at_least_one
from tests.tools.imports import ROOT, imports_of, python_files, tree_of

_EXPECTING = ("raises", "warns", "expects_", "within_")
"""Context managers whose name begins so fail by themselves."""
_SAME_LENGTH = ("enumerate", "reversed", "sorted", "list", "tuple", "set", "iter", "dict", "permutations")
_PRODUCTS = ("product", "zip")


def may_assert_nothing(path: Path) -> list[str]:
    """`file:line: name` of each test in `path` that may pass without an assertion."""
    tree = tree_of(path)
    reader = _Reader(_constants(tree.body), _asserting_functions(path))
    return [
        f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}:{node.lineno}: {node.name}"
        for node in _functions(tree)
        if node.name.startswith("test_") and not _draws_examples(node)
        if _has_assertion(node.body) and not reader.asserts(node.body)
    ]


class _Reader:
    """Reads statements of one file, whose constants and asserting functions it knows."""

    def __init__(self, constants: Mapping[str, ast.expr], asserting: frozenset[str]) -> None:
        self._constants = constants
        self._asserting = asserting

    def asserts(self, statements: Sequence[ast.stmt]) -> bool:
        """Whether an assertion among `statements` is reached whatever the data is."""
        return any(map(self._always_asserts, statements))

    def _always_asserts(self, node: ast.stmt) -> bool:
        match node:
            case ast.Assert():
                return True
            case ast.With() | ast.AsyncWith():
                return any(self._expects(item.context_expr) for item in node.items) or self.asserts(node.body)
            case ast.Try():
                return self.asserts(node.body) or self.asserts(node.finalbody)
            case ast.For():
                return self.is_filled(node.iter) and self.asserts(node.body)
            case ast.If():
                return self.asserts(node.body) and self.asserts(node.orelse)
            case ast.Match():
                return _matches_all(node.cases[-1]) and all(self.asserts(case.body) for case in node.cases)
            case ast.Expr() | ast.Assign() | ast.AnnAssign() | ast.Return():
                return any(_called(call) in self._asserting for call in ast.walk(node) if isinstance(call, ast.Call))
        return False

    def _expects(self, node: ast.expr) -> bool:
        name = _called(node) if isinstance(node, ast.Call) else ""
        return name.startswith(_EXPECTING) or name in self._asserting

    def is_filled(self, node: ast.expr) -> bool:
        """Whether a loop over `node` has a turn for certain."""
        match node:
            case ast.Tuple() | ast.List() | ast.Set():
                return any(not isinstance(part, ast.Starred) or self.is_filled(part.value) for part in node.elts)
            case ast.Dict():
                return bool(node.keys)
            case ast.Constant(value=str() | bytes()):
                return bool(node.value)
            case ast.Name():
                return _is_class(node.id) or (node.id in self._constants and self.is_filled(self._constants[node.id]))
            case ast.Call(func=ast.Attribute(value=value, attr="items" | "keys" | "values" | "split" | "copy")):
                return self.is_filled(value)
            case ast.Call() if _called(node) == at_least_one.__name__:
                return True
            case ast.Call(args=[_, *_]) if _called(node) in _SAME_LENGTH:
                return self.is_filled(node.args[0])
            case ast.Call(args=[_, *_]) if _called(node) in _PRODUCTS:
                return all(map(self.is_filled, node.args))
            case ast.Call(args=[*_, ast.Constant(value=int() as end)]) if _called(node) == "range":
                return len(node.args) < 3 and end > 0
            case ast.BinOp(op=ast.Add() | ast.BitOr()):
                return self.is_filled(node.left) or self.is_filled(node.right)
            case ast.GeneratorExp() | ast.ListComp() | ast.SetComp() | ast.DictComp():
                return all(self.is_filled(one.iter) and not one.ifs for one in node.generators)
        return False


def _matches_all(case: ast.match_case) -> bool:
    return case.guard is None and isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None


def _is_class(name: str) -> bool:
    """Only an enumeration among classes can be looped over, and it has members."""
    return name[:1].isupper() and not name.isupper()


def _constants(statements: Iterable[ast.stmt]) -> dict[str, ast.expr]:
    found: dict[str, ast.expr] = {}
    for node in statements:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found[node.target.id] = node.value
    return found


@cache
def _asserting_functions(path: Path) -> frozenset[str]:
    """Functions of the file and those that it imports from tests, which assert for their callers."""
    own = {node.name for node in _functions(tree_of(path)) if _has_assertion(node.body)}
    modules = {one.name.rpartition(".") for one in imports_of(path) if one.package == "tests"}
    sources = ((ROOT.joinpath(*module.split(".")).with_suffix(".py"), name) for module, _, name in modules)
    return frozenset(
        own | {name for source, name in sources if source.is_file() and name in _asserting_functions(source)}
    )


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _has_assertion(statements: Iterable[ast.stmt]) -> bool:
    return any(isinstance(node, ast.Assert) for statement in statements for node in ast.walk(statement))


def _draws_examples(node: ast.FunctionDef) -> bool:
    """Hypothesis draws empty examples too, and many that are not."""
    return any(isinstance(decorator, ast.Call) and _called(decorator) == "given" for decorator in node.decorator_list)


def _called(node: ast.Call) -> str:
    """The last part of the name that is called."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def main() -> int:
    """Print the tests that may assert nothing; 1 if there are any."""
    tests = (path for path in python_files("tests") if path.name.startswith("test_"))
    found = [line for path in tests for line in may_assert_nothing(path)]
    for line in found:
        print(f"{line} asserts only in a loop or a branch: assert first that there is something to look at")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
