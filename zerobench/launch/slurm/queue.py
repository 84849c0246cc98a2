"""Job states from squeue: its JSON in every layout so far, its columns if it was built without JSON; then from sacct.

Layouts: 22.05 prints a job's state as one word and plain numbers, null or 0 for none; 23.02 wraps most numbers as
{"set", "infinite", "number"}; from 23.11 on times are wrapped too and the state is a list. 22.05 takes no filter with
--json: it prints the whole cluster's jobs, and ours are picked here.

sacct reports tasks that squeue has forgotten, on clusters that keep accounts. Many small clusters keep none: sacct then
fails at once, and nothing here may depend on it.
"""

import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

from pydantic_core import from_json

from zerobench.launch.slurm.client import ask, run_client
from zerobench.launch.slurm.tasks import Stage, TaskState, array_task_ids

JobStates = dict[int, list[TaskState]]
"""By Slurm's job id, an array's own; a job that Slurm has forgotten has no states."""

TIMEOUT_S = 10.0
_COLUMNS = "%A|%F|%K|%T|%r|%D|%S|%e|%N"
"""Short names, which every version has, of the JSON names below; the third stands for one task or several."""
_NAMES = (
    *("job_id", "array_job_id", "array_task_id", "job_state", "state_reason", "node_count"),
    *("start_time", "end_time", "nodes"),
)
_NOTHING = {"", "None", "N/A", "(null)", "Unknown", "NONE"}


def job_states(job_ids: Collection[int], timeout_s: float = TIMEOUT_S, cluster: str | None = None) -> JobStates | None:
    """Return the state of each task of `job_ids`; None if Slurm is absent, or silent for `timeout_s` seconds.

    Slurm forgets a job some minutes after its end (MinJobAge, 300 s by default). With `cluster`, squeue's jobs of other
    clusters do not count: their numbers coincide.
    """
    if not job_ids:
        return {}
    deadline = time.monotonic() + timeout_s
    answer = ask(["squeue", "--json", *_selection(job_ids)], timeout_s)
    if answer is None:
        return None
    states = squeue_json(answer.stdout, job_ids, cluster) if answer.exit_code == 0 else None
    if states is not None:
        return states
    columns = ["squeue", "--noheader", f"--format={_COLUMNS}", *_selection(job_ids)]
    text = run_client(columns, max(1.0, deadline - time.monotonic()))
    return None if text is None else squeue_columns(text, job_ids)


def _selection(job_ids: Collection[int]) -> list[str]:
    """Return the options that select `job_ids`, ended ones too."""
    # One is repeated: asked for a single job that it has forgotten, squeue fails; asked for two, it prints none.
    named = sorted(job_ids)
    return ["--states=all", f"--jobs={','.join(map(str, [*named, named[0]]))}"]


def squeue_json(text: str, job_ids: Iterable[int], cluster: str | None = None) -> JobStates | None:
    """Parse the output of `squeue --json` for `job_ids`; None if it is no such document or reports errors."""
    try:
        document = from_json(text)
    except ValueError:
        return None
    jobs = document.get("jobs") if isinstance(document, dict) else None
    if not isinstance(jobs, list) or document.get("errors"):
        return None
    ours = [job for job in jobs if isinstance(job, dict)]
    return _collect_states((job for job in ours if not cluster or job.get("cluster") in (None, "", cluster)), job_ids)


def _collect_states(jobs: Iterable[dict[str, Any]], job_ids: Iterable[int]) -> JobStates:
    """Collect the states of `job_ids` from squeue's rows, named as in its JSON."""
    states: JobStates = {job_id: [] for job_id in job_ids}
    for job in jobs:
        job_id = number_of(job.get("array_job_id")) or number_of(job.get("job_id"))
        if job_id in states:
            states[job_id] += _states_of(job)
    return states


def _states_of(job: dict[str, Any]) -> Iterator[TaskState]:
    """Yield the state of each task in one of squeue's rows: tasks that have not begun share one."""
    value = job.get("job_state")
    words = value if isinstance(value, list) else [value]
    task = TaskState(
        task_id=number_of(job.get("array_task_id")),
        states=tuple(word.upper() for word in words if isinstance(word, str) and word),
        reason=text_of(job.get("state_reason")),
        num_nodes=number_of(job.get("node_count")),
        nodes=text_of(job.get("nodes")),
        restart_count=number_of(job.get("restart_cnt")),
        start_s=time_of(job.get("start_time")),
        end_s=time_of(job.get("end_time")),
        preempt_s=time_of(job.get("preempt_time")),
    )
    tasks = job.get("array_task_string")
    yield from _each(task, tasks if isinstance(tasks, str) else "")


def squeue_columns(text: str, job_ids: Iterable[int]) -> JobStates | None:
    """Parse squeue's output in our columns for `job_ids`; None if a line has other columns."""
    rows = [[text_of(cell.strip()) for cell in line.split("|")] for line in text.splitlines()]
    if any(len(row) != len(_NAMES) for row in rows):
        return None
    return _collect_states(
        ({**dict(zip(_NAMES, row, strict=True)), "array_task_string": row[2]} for row in rows), job_ids
    )


def _each(state: TaskState, tasks: str) -> Iterator[TaskState]:
    """Yield `state` for each of `tasks` in Slurm's notation; unchanged for one task or a plain job."""
    if state.task_id is not None or not tasks:
        yield state
        return
    for task_id in array_task_ids(tasks):
        yield replace(state, task_id=task_id)


def number_of(value: Any) -> int | None:
    """Return a whole number of any layout; None if unset."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") else None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return int(value)
    except (ValueError, OverflowError):
        return None


def time_of(value: Any) -> float | None:
    """Return a Unix time; Slurm's 0 means none."""
    return float(number_of(value) or 0) or None


def text_of(value: Any) -> str | None:
    """Return a text; None for Slurm's words for nothing."""
    return value if isinstance(value, str) and value not in _NOTHING else None


_FIELDS = "JobID,State,Start,End,NNodes,NodeList"


def ended_jobs(job_ids: Collection[int], timeout_s: float = TIMEOUT_S) -> JobStates | None:
    """Return the final state of each ended task of `job_ids`; None without accounts.

    A requeued task has one account per start (--duplicates): the last one is its end, the others count as restarts.
    Right after a node failed, the next one is not there yet: use this only for jobs that squeue has forgotten.
    """
    if not job_ids:
        return {}
    named = ",".join(map(str, sorted(job_ids)))
    options = ["--allocations", "--noheader", "--parsable2", "--duplicates", f"--format={_FIELDS}", f"--jobs={named}"]
    # A requeued task has one account per start (--duplicates): the last one is its end, the others count as restarts.
    text = run_client(["sacct", *options], timeout_s)
    return None if text is None else sacct_lines(text, job_ids)


def sacct_lines(text: str, job_ids: Iterable[int]) -> JobStates | None:
    """Parse sacct's output in our fields for `job_ids`; None if a line has other fields."""
    accounts: dict[tuple[int, int | None], list[TaskState]] = {}
    wanted = set(job_ids)
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) != _FIELDS.count(",") + 1:
            return None
        job, _, task = cells[0].partition("_")
        job_id = number_of(job)
        if job_id in wanted and not task.startswith("["):  # tasks in brackets have not begun
            state = _state(task, cells)
            accounts.setdefault((job_id, state.task_id), []).append(state)
    states: JobStates = {job_id: [] for job_id in wanted}
    for (job_id, _), starts in accounts.items():
        over = [state for state in starts if state.stage is Stage.OVER]
        lives = any(state.stage is not Stage.OVER and "REQUEUED" not in state.states for state in starts)
        last = None if lives or not over else max(over, key=lambda state: state.end_s or 0.0)
        if last is not None:
            states[job_id].append(replace(last, restart_count=len(starts) - 1))
    return states


def _state(task: str, cells: list[str]) -> TaskState:
    _, state, start, end, num_nodes, nodes = cells
    return TaskState(
        task_id=number_of(task) if task else None,
        states=(state.split()[0].upper(),) if state else (),  # `CANCELLED by 1000`
        num_nodes=number_of(num_nodes),
        nodes=None if nodes == "None assigned" else text_of(nodes),
        start_s=time_of(start),
        end_s=time_of(end),
    )
