"""No text of others, however long its lines are, takes the square of its length to read."""

import ast
import contextlib
import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.tools.hostile_lines import hostile_lines, superlinear
from tests.tools.imports import ROOT
from zerobench.app.terminal.explain import _log_text
from zerobench.common.errors import UserError
from zerobench.common.redaction import redact_arguments, redact_text
from zerobench.config.trial.allocator import asked_settings
from zerobench.launch.machine.variables import safe_value
from zerobench.report.explain.ending import printed_lines
from zerobench.report.explain.kill_message import killed_in
from zerobench.report.explain.log import explain_log
from zerobench.report.explain.torch_message import messages_in

_NEED_TORCH = (
    *(f"rank/{part}" for part in ("loop", "optimizers", "strategies", "tensorflow", "training", "worlds")),
    "emulator/inside",
    "launch/emulate/inside",
)
"""Their patterns are searched for in names of functions and modules that zerobench itself imported."""
_METHODS = ("search", "match", "fullmatch", "sub", "split", "findall", "finditer")
_CALLED = re.compile(rf"\b([A-Z_]+)\.({'|'.join(_METHODS)})\b")
_MADE_FROM_NAMES = {
    "zerobench/emulator/outdated.py",  # the name of a folder of ours
    "zerobench/emulator/build.py",  # CUDA's headers and metadata of installed packages, by a prefix of theirs
    "zerobench/report/charts/render.py",  # an attribute of SVG that zerobench draws
    "zerobench/launch/machine/installed.py",  # one requirement, by the name of its package
    "zerobench/common/redaction.py",  # one set of characters
    "zerobench/launch/machine/variables.py",  # the same
    "zerobench/config/models/tensors.py",  # the user's own pattern
}


def sources() -> Iterator[tuple[str, str]]:
    """The path and text of each module with a pattern in it."""
    for path in sorted((ROOT / "zerobench").rglob("*.py")):
        name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        if re.search(r"\bre\.[a-z]+\(", text) and not any(f"zerobench/{one}/" in name for one in _NEED_TORCH):
            yield name, text


def patterns_in(value: Any) -> Iterator[re.Pattern[str]]:
    """The patterns in a module's constant."""
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, Mapping):
        yield from patterns_in((*value, *value.values()))
    elif isinstance(value, tuple | list):
        for one in value:
            yield from patterns_in(one)


def constants(name: str) -> Iterator[tuple[str, re.Pattern[str]]]:
    module = importlib.import_module(name.removesuffix(".py").replace("/", "."))
    for constant, value in vars(module).items():
        yield from ((constant, pattern) for pattern in patterns_in(value))


def written_in_place(name: str, text: str) -> Iterator[tuple[str, re.Pattern[str]]]:
    """The patterns of calls such as `re.search(r"...", text)`, by the method."""
    module = importlib.import_module(name.removesuffix(".py").replace("/", "."))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {f"re.{method}" for method in _METHODS}:
            try:
                pattern = eval(compile(ast.Expression(node.args[0]), name, "eval"), dict(vars(module)))  # noqa: S307
            except NameError:
                assert name in _MADE_FROM_NAMES, f"{name}:{node.lineno}: a pattern that this test cannot see"
            else:
                yield ast.unparse(node.func).removeprefix("re."), re.compile(pattern)


def use(pattern: re.Pattern[str], method: str) -> Callable[[str], Any]:
    calls: dict[str, Callable[[str], Any]] = {
        "sub": lambda text: pattern.sub("", text),
        "finditer": lambda text: list(pattern.finditer(text)),
    }
    return calls.get(method) or getattr(pattern, method)


def called_methods(*texts: str) -> dict[str, set[str]]:
    """How patterns are used in sources, by their names."""
    called: dict[str, set[str]] = {}
    for name, method in (found for text in texts for found in _CALLED.findall(text)):
        called.setdefault(name, set()).add(method)
    return called


_FULLY_MATCHED = {"_COMPONENT_OF_SEGMENT"}
"""Handed on to a loop that matches one segment of a name."""


def all_uses() -> dict[str, tuple[str, Callable[[str], Any]]]:
    found: dict[str, tuple[str, Callable[[str], Any]]] = {}
    read = dict(sources())
    anywhere = called_methods(*(path.read_text(encoding="utf-8") for path in (ROOT / "zerobench").rglob("*.py")))
    for name, text in read.items():
        called = anywhere | called_methods(text)
        uses = [
            (constant, method, pattern)
            for constant, pattern in constants(name)
            for method in (["fullmatch"] if constant in _FULLY_MATCHED else sorted(called.get(constant, {"search"})))
        ]
        uses += [("in place", method, pattern) for method, pattern in written_in_place(name, text)]
        for constant, method, pattern in uses:
            key = f"{name} {constant}.{method} {pattern.pattern[:60]}"
            found[key] = pattern.pattern, use(pattern, method)
    return found


USES = all_uses()


def test_the_patterns_of_the_package_are_found() -> None:
    assert len(USES) > 100
    known = ("common/redaction", "report/explain/kill_message", "report/explain/torch_message")
    for name in (*known, "launch/slurm/tasks", "common/units"):
        assert any(key.startswith(f"zerobench/{name}.py ") for key in USES), name


@pytest.mark.parametrize("key", USES)
def test_a_pattern_takes_linear_time(key: str) -> None:
    pattern, search = USES[key]
    assert superlinear(search, pattern) is None


def test_a_quadratic_pattern_would_be_seen() -> None:
    for pattern in (r"[1-9]\d* Workers", r"x=(.*?)\s*$", r"[a-z]+@", r"node .*exceeds"):
        assert superlinear(re.compile(pattern).search, pattern) is not None, pattern


WORDS = [
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of ",
    "DefaultCPUAllocator: you tried to allocate ",
    "unable to mmap 1 bytes from file ",
    "Out of memory: Killed process 1 (",
    "Memory on the node ",
    '  File "a.py", line 1, in f',
    "│ a.py:1 in ",
    "http://user:",
    "--token ",
    "-token.-",
    "token=",
    'password="',
    "-----BEGIN PRIVATE KEY-----",
    "eyJaaaaaaaa.",
    "a@",
]


def silently(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def reading(text: str) -> None:
        with contextlib.suppress(UserError):
            read(text)

    return reading


READERS: dict[str, Callable[[str], Any]] = {
    "redact_text": redact_text,
    "redact_arguments": lambda text: redact_arguments(["train.py", text]),
    "safe_value": lambda text: safe_value("NAME", text),
    "killed_in": killed_in,
    "messages_in": messages_in,
    "explain_log": silently(lambda text: explain_log(text, "log")),
    "printed_lines": lambda text: printed_lines(f"fact; last lines:\n{text}"),
    "asked_settings": lambda text: asked_settings({"PYTORCH_ALLOC_CONF": text}),
}


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("reader", READERS)
def test_a_reader_of_foreign_text_takes_linear_time(reader: str, word: str) -> None:
    assert superlinear(READERS[reader], re.escape(word)) is None


def test_explain_reads_a_log_with_a_line_of_a_million_digits(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("1" * 1_000_000 + "\nOut of memory: Killed process 7 (python) anon-rss:1024kB\n")
    [topic] = explain_log(_log_text(str(log), tmp_path), log.name)
    assert topic.figures["killed"]["resident_bytes"] == 2**20


def test_hostile_lines_begin_as_the_pattern_does() -> None:
    lines = list(hostile_lines(r"Killed process \d+ \([^)]*\)", 200))
    assert any(line.startswith("Killed process 1 (") for line in lines)
    assert {len(line) for line in lines} <= {*range(190, 203)}
