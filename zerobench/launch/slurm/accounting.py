"""Read sacct, on clusters that keep accounts, for tasks that squeue has forgotten.

Many small clusters keep none: sacct then fails at once, and nothing here may depend on it.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from zerobench.launch.slurm.client import run_client
from zerobench.launch.slurm.queue import TIMEOUT_S, JobStates, number_of, text_of, time_of
from zerobench.launch.slurm.tasks import Stage, TaskState

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
