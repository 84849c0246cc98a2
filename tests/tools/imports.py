"""What each file of the package imports and calls, read from its syntax and never by importing it."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Import:
    """One import of one name."""

    path: Path
    line: int
    name: str
    """Dotted, the imported member included: `from a.b import c` is `a.b.c`."""
    at_start: bool
    """Runs when the file is imported, and not when one of its functions is called."""

    @property
    def package(self) -> str:
        """The top-level package."""
        return self.name.partition(".")[0]

    @property
    def where(self) -> str:
        """`file:line: imports name`, for people."""
        return f"{self.path.relative_to(ROOT)}:{self.line}: imports {self.name}"


def python_files(*folders: str) -> list[Path]:
    """The Python files under folders of the checkout."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def imports_of(path: Path) -> tuple[Import, ...]:
    """Every import of a file, those in functions too."""
    return tuple(_imports(path, tree_of(path), at_start=True))


def module_name(path: Path) -> str:
    """`zerobench.config.trial.trial` for its file; a package's `__init__.py` has the package's name."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(path: Path, node: ast.AST, *, at_start: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for name in _names(path, child):
            yield Import(path, child.lineno, name, at_start)  # type: ignore[attr-defined] # statements have lines
        yield from _imports(path, child, at_start=at_start and not inside)


def _names(path: Path, node: ast.AST) -> Iterator[str]:
    """The names that a node imports; a name given as text to import_module or __import__ counts."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = ".".join(filter(None, (_parent(path, node.level), node.module)))
        yield from (f"{base}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
        yield from (arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant) and isinstance(arg.value, str))


def _parent(path: Path, level: int) -> str:
    """The package that a relative import of so many dots begins at."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[: len(parts) - level]) if level else ""
