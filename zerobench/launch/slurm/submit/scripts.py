"""Fill in a batch script's `#SBATCH` lines and settings, and nothing else.

A template is a complete script that works by hand (slurm/*.sbatch). Values come from command lines, sweeps and folder
names, and two parsers read them: sbatch its `#SBATCH` lines, bash the settings, assignments between two marks. Each
value is quoted for its parser, so that none can start a command, end a line or become an option.

sbatch's parser (src/sbatch/opt.c, _get_argument, the same from 18.08 on): a backslash takes the next character
literally, within quotes of either kind too; blanks end a word outside quotes, even after a backslash; `#` begins a
comment outside quotes; and a line with `hetjob` or `packjob` anywhere in it begins another job's options.
"""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from zerobench.common.errors import UserError
from zerobench.common.resources import shipped

Options = Mapping[str, str | bool]
"""sbatch's long options without their dashes: True for one without a value, False removes the template's line."""

SETTINGS_BEGIN = "# Settings: begin"
SETTINGS_END = "# Settings: end"

_OPTION = re.compile(r"#?#SBATCH --(?P<key>[a-z][a-z-]*)(=\S+)?(?P<comment>\s+#.*)?")
_SETTING = re.compile(r"(?P<name>[a-z_]+)=(\S*|\$\{.*\})(?P<comment>\s+#.*)?")
_PLAIN = re.compile(r"[A-Za-z0-9_./:=,@%+^~\[\]&|*!()-]*")
_SPLITS_JOBS = re.compile("(hetjo|packjo)(b)", re.IGNORECASE)


def template(name: str) -> str:
    """Return the text of the shipped template `name`: array, trial or report."""
    return (shipped("slurm") / f"{name}.sbatch").read_text(encoding="utf-8")


def render(text: str, options: Options, settings: Mapping[str, str]) -> str:
    """Fill `options` of sbatch and the values of `settings` into the template `text`.

    An option that the template has, switched off by a second `#` or not, changes in place and keeps its comment; the
    others follow the last of them.

    Raises UserError if a value contains a control character. Raises KeyError if the template has no such setting.
    """
    lines = text.splitlines()
    first, last = lines.index(SETTINGS_BEGIN), lines.index(SETTINGS_END)
    head = _fill_options(lines[:first], options)
    block = _fill_settings(lines[first:last], settings)
    return "".join(f"{line}\n" for line in [*head, *block, *lines[last:]])


def sbatch_word(key: str, value: str) -> str:
    """Return `--key=value` as one word for sbatch's parser.

    Raises UserError for a control character, which no quoting preserves.
    """
    _refuse_control(f"--{key}", value)
    # A backslash within the word keeps it whole for the parser and hides it from the search for it.
    if _PLAIN.fullmatch(value):
        return f"--{key}={_SPLITS_JOBS.sub(_backslash, value)}"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"--{key}={_SPLITS_JOBS.sub(_backslash, escaped)}"'


def log_pattern(path: Path, pattern: str) -> str:
    """Return the value of --output for logs in the folder `path`, with its percent signs escaped.

    Raises UserError if `path` contains a control character, or a backslash, which would disable the replacement in
    `pattern` (sbatch(1), filename pattern).
    """
    _refuse_control("--reports", str(path))
    if "\\" in str(path):
        raise UserError(f"--reports: {str(path)!r} contains a backslash, which Slurm interprets")
    return f"{str(path).replace('%', '%%')}/{pattern}"


def _backslash(match: re.Match[str]) -> str:
    return f"{match[1]}\\{match[2]}"


def _fill_options(lines: list[str], options: Options) -> list[str]:
    given = dict(options)
    changed: list[str] = []
    after = 0
    for line in lines:
        match = _OPTION.fullmatch(line)
        value = given.pop(match["key"], None) if match else None
        if match is None or value is None:
            changed.append(line)
        elif value is not False:
            changed.append(_keep_comment(_option_line(match["key"], value), line, match.start("comment")))
        if match:
            after = len(changed)
    added = [_option_line(key, value) for key, value in given.items() if value is not False]
    return [*changed[:after], *added, *changed[after:]]


def _option_line(key: str, value: str | bool) -> str:
    return f"#SBATCH {sbatch_word(key, value)}" if isinstance(value, str) else f"#SBATCH --{key}"


def _fill_settings(lines: list[str], settings: Mapping[str, str]) -> list[str]:
    given = dict(settings)
    changed = []
    for line in lines:
        match = _SETTING.fullmatch(line)
        if match is None or match["name"] not in given:
            changed.append(line)
            continue
        name = match["name"]
        value = given.pop(name)
        _refuse_control(name, value)
        changed.append(_keep_comment(f"{name}={shlex.quote(value) if value else ''}", line, match.start("comment")))
    if given:
        raise KeyError(next(iter(given)))
    return changed


def _keep_comment(text: str, line: str, at: int) -> str:
    """Append the comment of `line`, which begins at `at` or nowhere (-1), in the same column if there is room."""
    if at < 0:
        return text
    comment = line[at:].lstrip()
    return f"{text:<{len(line) - len(comment) - 2}}  {comment}"


def _refuse_control(name: str, value: str) -> None:
    if not value.isprintable():
        raise UserError(f"{name}: {value!r} contains an unprintable character, not allowed in a batch script")
