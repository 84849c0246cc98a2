"""Batch scripts of a run's jobs: the options and settings filled into each template."""

import sys
from collections.abc import Sequence
from pathlib import Path

from zerobench.launch.slurm.jobs import JobKind
from zerobench.launch.slurm.options import Launcher, SubmitOptions, time_text
from zerobench.launch.slurm.submit.grouping import PREDICTION_CPUS, REPORT_TIME_S, JobArray
from zerobench.launch.slurm.submit.scripts import log_pattern, render, template
from zerobench.records.folder import RunFolder

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
    settings = {
        "run": str(run.path),
        "tasks": str(run.slurm_tasks(name)),
        "launcher": options.launcher.value,
        **(_rank_settings(options, python) if srun_starts_ranks else _job_settings(options, python)),
    }
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
    """Options that choose a job's nodes and account; the user's own sbatch options come last, which wins.

    A job that measures nothing takes any node, and a reservation applies to its own partition only.
    """
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


def _rank_settings(options: SubmitOptions, python: Path) -> dict[str, str]:
    return {
        "python": str(python),
        "worker_python": options.python or (PYTHON_IN_CONTAINER if options.container else ""),
        "cpus_per_node": str(options.cpus_per_node or ""),
        "gpus_per_node": "" if options.gpus_per_node is None else str(options.gpus_per_node),
        "container": options.container or "",
        "container_runtime": options.container_runtime.value,
    }


def _job_settings(options: SubmitOptions, python: Path) -> dict[str, str]:
    """Settings of jobs whose ranks run under the job's own interpreter: simulations, and ranks without Slurm. It must
    then be the ranks', which has torch. A container's is of no use outside it.
    """
    return {"python": str(python) if options.container else options.python or str(python)}
