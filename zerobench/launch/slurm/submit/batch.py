"""Batch scripts of a run's jobs: the options and settings filled into each template, and nothing else of it.

A template is a complete script that works by hand (slurm/*.sbatch). Values come from command lines, sweeps and folder
names, and two parsers read them: sbatch its `#SBATCH` lines, bash the settings, assignments between two marks. Each
value is quoted for its parser, so that none can start a command, end a line or become an option.

sbatch's parser (src/sbatch/opt.c, _get_argument, the same from 18.08 on): a backslash takes the next character
literally, within quotes of either kind too; blanks end a word outside quotes, even after a backslash; `#` begins a
comment outside quotes; and a line with `hetjob` or `packjob` anywhere in it begins another job's options.
"""

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from zerobench.common.errors import UserError
from zerobench.common.resources import shipped
from zerobench.launch.slurm.jobs import JobKind
from zerobench.launch.slurm.options import Launcher, SubmitOptions, time_text
from zerobench.launch.slurm.submit.grouping import PREDICTION_CPUS, REPORT_TIME_S, JobArray
from zerobench.records.folder import RunFolder

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


PREDICTION_MEM = "6G"
"""A simulation stays below 1 GB; the simulator and its models need some too."""
PYTHON_IN_CONTAINER = "python3"
"""The ranks' interpreter in a container, where our path does not exist."""

Given = dict[str, str | bool]


def array_script(
    run: RunFolder, name: str, array: JobArray, options: SubmitOptions, *, python: Path = Path(sys.executable)
) -> str:
    """Return the script of `array`, named `name`; `python` runs everything but the ranks.

    Raises UserError for a value that no batch script can hold.
    """
    last = len(array.tasks) - 1
    throttle = f"%{options.throttle}" if options.throttle else ""
    given: Given = {
        "job-name": f"{run.run_id}.{name}",
        "array": f"0-{last}{throttle}" if last else "0",
        "nodes": str(array.num_nodes),
        "time": time_text(array.time_limit_s),
        "output": log_pattern(run.slurm_logs, f"{name}-%A_%a.out"),
    }
    predicts = array.kind is JobKind.PREDICTIONS
    if predicts:  # nothing is measured: others may use the node too
        given |= {"gpus-per-node": False, "exclusive": False, "ntasks": "1"}
        given |= {"cpus-per-task": str(PREDICTION_CPUS), "mem": PREDICTION_MEM}
    else:
        given["gpus-per-node"] = str(options.gpus_per_node) if options.gpus_per_node else False
        given |= {"mem": options.mem} if options.mem else {}
    partition = (options.cpu_partition if predicts else None) or options.partition
    srun_starts_ranks = not predicts and options.launcher is not Launcher.LOCAL
    settings = {"run": str(run.path), "tasks": str(run.slurm_tasks(name)), "launcher": options.launcher.value}
    if srun_starts_ranks:
        settings |= {
            "python": str(python),
            "worker_python": options.python or (PYTHON_IN_CONTAINER if options.container else ""),
            "cpus_per_node": str(options.cpus_per_node or ""),
            "gpus_per_node": "" if options.gpus_per_node is None else str(options.gpus_per_node),
            "container": options.container or "",
            "container_runtime": options.container_runtime.value,
        }
    else:
        # Simulations, and ranks without Slurm, run outside of any container, whose Python is of no use there.
        settings |= {"python": str(python), "worker_python": "" if options.container else options.python or ""}
    return render(template("array"), given | _placement_options(options, partition, measures=not predicts), settings)


def report_script(
    run: RunFolder,
    name: str,
    after: Sequence[int],
    options: SubmitOptions,
    max_time_s: int | None = None,
    *,
    python: Path = Path(sys.executable),
) -> str:
    """Return the script of the report that follows the jobs `after`, however they end; `max_time_s` is its partition's
    limit.

    Raises UserError for a value that no batch script can hold.
    """
    given: Given = {
        "job-name": f"{run.run_id}.{name}",
        "time": time_text(report_time_s(max_time_s)),
        "output": log_pattern(run.slurm_logs, f"{name}-%j.out"),
    }
    if after:
        given["dependency"] = "afterany:" + ":".join(map(str, after))
    given |= _placement_options(options, options.cpu_partition or options.partition, measures=False)
    return render(template("report"), given, {"run": str(run.path), "python": str(python)})


def report_time_s(max_time_s: int | None) -> int:
    """Time limit of the report in seconds."""
    return min(REPORT_TIME_S, max_time_s or REPORT_TIME_S)


def _placement_options(options: SubmitOptions, partition: str | None, *, measures: bool) -> Given:
    """Options that choose a job's nodes and account; the user's own sbatch options come last, which wins."""
    # A job that measures nothing takes any node, and a reservation applies to its own partition only.
    named = {
        "partition": partition,
        "account": options.account,
        "qos": options.qos,
        "constraint": options.constraint if measures else None,
        "reservation": options.reservation if partition == options.partition else None,
    }
    extra: Given = dict(options.extra)
    if "no-requeue" in extra:
        extra["requeue"] = False
    return {key: value for key, value in named.items() if value} | extra
