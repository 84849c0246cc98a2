"""The jobs' scripts run on this machine, without Slurm."""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from zerobench.common.errors import UserError
from zerobench.launch.run.stop import Stop
from zerobench.launch.slurm.jobs import JobKind, read_submission
from zerobench.launch.slurm.options import Launcher, SubmitOptions
from zerobench.launch.slurm.submit import batch
from zerobench.launch.slurm.submit.grouping import JobArray
from zerobench.launch.slurm.submit.limits import Limits
from zerobench.launch.slurm.submit.local import refuse_several_nodes, run_here
from zerobench.records.folder import RunFolder

OPTIONS = SubmitOptions(launcher=Launcher.LOCAL)
# Stands where Python does: says what it was told, fails at `bad`, and at `slow` waits to be told to stop.
INTERPRETER = """#!/bin/bash
echo "$SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT: $*"
trial=$([ -z "$SLURM_ARRAY_TASK_ID" ] || sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" "$4")
env | grep -c '^SLURM_JOB_ID=' > "$(dirname "$0")/job_ids"
[ "$trial" != bad ] || exit 3
if [ "$trial" = slow ]; then
  trap 'echo stopped; exit 130' INT TERM
  touch "$(dirname "$0")/waits"
  while true; do sleep 0.05; done
fi
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run's folder, and a stand-in for the interpreter of its scripts."""
    program = tmp_path / "interpreter"
    program.write_text(INTERPRETER, encoding="utf-8")
    program.chmod(0o755)
    for function in ("array_script", "report_script"):
        monkeypatch.setitem(getattr(batch, function).__kwdefaults__, "python", program)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    path = tmp_path / "run_20260101-120000"
    path.mkdir()
    return RunFolder(path)


def tasks(*trial_ids: str) -> list[JobArray]:
    return [JobArray(JobKind.TRIALS, 1, [[trial_id] for trial_id in trial_ids], 600)]


def test_every_task_runs_in_order_with_the_variables_of_its_array_then_the_report(run: RunFolder) -> None:
    ended = list(run_here(run, tasks("a", "bad", "c"), OPTIONS, Limits(), Stop()))
    assert [(one.job.name, one.task_id, one.exit_code) for one in ended] == [
        ("1-node", 0, 0),
        ("1-node", 1, 3),
        ("1-node", 2, 0),
        ("report", 0, 0),
    ]
    said = ended[1].log.read_text()
    words = f"-m zerobench.launch.slurm.job {run.path} {run.slurm_tasks('1-node')} --launcher local"
    assert said == f"1 of 3: {words}\n"
    assert (run.path.parent / "job_ids").read_text() == "0\n"


def test_what_ran_here_is_written_down_without_a_job_of_slurms(run: RunFolder) -> None:
    list(run_here(run, tasks("a"), OPTIONS, Limits(), Stop()))
    assert [(job.name, job.job_id) for job in read_submission(run).jobs] == [("1-node", None), ("report", None)]


def test_who_asks_to_stop_stops_the_task_that_runs_and_those_after_it(run: RunFolder) -> None:
    stop = Stop()

    def ask() -> None:
        deadline = time.monotonic() + 60
        while not (run.path.parent / "waits").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        stop.ask(signal.SIGTERM)

    threading.Thread(target=ask, daemon=True).start()
    ended = list(run_here(run, tasks("a", "slow", "c"), OPTIONS, Limits(), stop))
    assert [one.exit_code for one in ended] == [0, 130]
    assert ended[1].log.read_text().splitlines()[-1] == "stopped"


def test_trials_on_several_nodes_are_refused() -> None:
    arrays = [*tasks("a"), JobArray(JobKind.TRIALS, 2, [["b", "c"]], 600)]
    with pytest.raises(UserError, match="--local: 2 trials take 2 or more nodes"):
        refuse_several_nodes(arrays)
    refuse_several_nodes(tasks("a"))


def test_the_scripts_run_under_this_interpreter() -> None:
    run = RunFolder(Path("/reports/run"))
    script = batch.array_script(run, "1-node", tasks("a")[0], OPTIONS)
    assert f"\npython={sys.executable} " in script
