"""Users' YAML, read into plain values only, with one-line errors for everything unusual.

YAML 1.1, which PyYAML reads, turns `no` into false, `1:30` into 90, `010` into 8 and leaves `5e8` a string. Here only
YAML 1.2's core words are special (null, true, false, numbers; `5e8` is one), a key must be unique in its mapping, and
results consist of dicts with string keys, lists, strings, finite numbers, booleans and None.
"""

import math
import re
from collections.abc import Hashable, Iterator
from typing import Any

import yaml

from zerobench.common.errors import UserError

MAX_DEPTH = 16
MAX_VALUES = 20_000
_LARGEST = 2**63 - 1
_LONGEST_MESSAGE = 700
_LONGEST_NUMBER = 100
_LONGEST_VALUE = 100

_NUMBER = r"[-+]?(?:\d[\d_]*(?:\.[\d_]*)?|\.\d[\d_]*)(?:[eE][-+]?\d+)?"
_WORDS = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?\d[\d_]*", list("-+0123456789")),
    "float": (rf"{_NUMBER}|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", list("-+.0123456789")),
    "merge": (r"<<", ["<"]),
}


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with YAML 1.2's words and unique keys."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own name

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name in seen and name is not None:
                raise yaml.constructor.ConstructorError(
                    problem=f"the key {name!r} is given twice", problem_mark=key.start_mark
                )
            seen.update([name] if name is not None else [])
        return super().construct_mapping(node, deep=deep)


for _word, (_pattern, _first) in _WORDS.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_word}", re.compile(rf"(?:{_pattern})\Z"), _first)
_Loader.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value.replace("_", "")))


def load_plain(text: str, where: str) -> Any:
    """Read the plain value of the YAML `text`. Raises UserError, which begins with `where`."""
    try:
        value = load_bounded(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f"line {mark.line + 1}: "
        raise UserError(one_line(f"{where}: {line}invalid YAML: {error.problem or error.context}")) from None
    except RecursionError:
        raise UserError(f"{where}: nested too deeply; at most {MAX_DEPTH} levels") from None
    except OverflowError as error:
        raise UserError(f"{where}: {error}") from None
    # Explicit tags (`!!int x`) and unprintable characters end in whatever the constructor stumbles over.
    except (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(one_line(f"{where}: invalid YAML: {error}")) from None
    check_plain(value, where)
    return value


def load_bounded(text: str, loader: type[yaml.SafeLoader]) -> Any:
    """Read the YAML `text` with `loader`, expanding aliases and merges to at most MAX_VALUES.

    PyYAML copies the contents of `<<`, so that nine levels of ten aliases are a thousand million keys.

    Raises yaml.YAMLError, or the constructor's errors; OverflowError if it expands to more.
    """
    reader = loader(text)
    try:
        node = reader.get_single_node()
        if node is None:
            return None
        if _unfolded(node, {}) > MAX_VALUES:
            raise OverflowError(f"more than {MAX_VALUES} values")
        return reader.construct_document(node)
    finally:
        reader.dispose()


def _unfolded(node: yaml.Node, known: dict[int, int]) -> int:
    """Number of values of `node`, with each alias counted where it is used; a recursive one counts once."""
    if id(node) not in known:
        known[id(node)] = 1
        inner = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        parts = inner if isinstance(node, yaml.CollectionNode) else []
        known[id(node)] = 1 + sum(_unfolded(part, known) for part in parts)
    return known[id(node)]


def check_plain(value: object, where: str) -> None:
    """Raise UserError, naming the field, unless `value` is plain as defined in the module's docstring."""
    for count, (place, part, depth) in enumerate(_parts(value)):
        if count >= MAX_VALUES:
            raise UserError(f"{where}: more than {MAX_VALUES} values")
        fault = f"nested too deeply; at most {MAX_DEPTH} levels" if depth > MAX_DEPTH else _fault(part)
        if fault:
            raise UserError(one_line(f"{where}: {place or 'the file'}: {fault}"))


def _parts(value: object) -> Iterator[tuple[str, object, int]]:
    """All values within `value`, outermost first, with their place and depth."""
    todo: list[tuple[str, object, int]] = [("", value, 0)]
    while todo:
        place, part, depth = todo.pop()
        yield place, part, depth
        if isinstance(part, dict):
            todo += [(f"{place}.{key}".removeprefix("."), inner, depth + 1) for key, inner in part.items()]
        elif isinstance(part, list):
            todo += [(f"{place}[{index}]", inner, depth + 1) for index, inner in enumerate(part)]


def _fault(part: object) -> str | None:
    """Error in one value, apart from its parts."""
    if isinstance(part, dict):
        return next((_key_fault(key) for key in part if _key_fault(key)), None)
    if isinstance(part, bool) or part is None or isinstance(part, list):
        return None
    if isinstance(part, str):
        odd = next((c for c in part if not (c.isprintable() or c in "\n\t")), None)
        return None if odd is None else f"the text {part!r} holds the unprintable character {odd!r}"
    if isinstance(part, int):
        return None if abs(part) <= _LARGEST else "the number does not fit 64 bits"
    if isinstance(part, float):
        return None if math.isfinite(part) else f"{part!r} is not a finite number"
    return f"a {type(part).__name__} is not a plain value; choices: text, number, true, false, null, list, mapping"


def _key_fault(key: object) -> str | None:
    if not isinstance(key, str):
        return f"the key {key!r} is not text; put it in quotes"
    return None if key.isprintable() and key else f"the key {key!r} is empty or unprintable"


def parse_number(value: object) -> object:
    """Convert a number, or text such as `5e8`, to an integer or a float; other values stay."""
    if isinstance(value, str) and len(value) <= _LONGEST_NUMBER and re.fullmatch(_NUMBER, value, re.ASCII):
        value = float(value.replace("_", "")) if not value.isdecimal() else int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def format_value(value: object) -> str:
    """`value` in the user's notation, strings quoted, short enough for an error."""
    words = {True: "true", False: "false", None: "null"}
    text = words[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def one_line(text: str) -> str:
    """`text` on one line, printable, with the middle of a very long one cut out."""
    flat = " ".join(text.split())
    flat = flat if flat.isprintable() else "".join(c if c.isprintable() else "?" for c in flat)
    half = _LONGEST_MESSAGE // 2
    return flat if len(flat) <= _LONGEST_MESSAGE else f"{flat[:half]} ... {flat[-half:]}"
