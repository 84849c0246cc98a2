"""The nodes of a job as a place for trials: what is refused and started, and what is asked of them beside ranks."""

import signal
from pathlib import Path

import pytest

from tests.launch.slurm.on_cluster import standin_trial
from tests.launch.slurm.standins import Standins
from tests.tools.known import known
from zerobench.common.errors import UserError
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.launch.run.stop import Stop
from zerobench.launch.slurm.job.allocation import Allocation
from zerobench.launch.slurm.job.executor import SlurmExecutor, capture_nodes
from zerobench.launch.slurm.job.steps import Interpreter, rank_script_text
from zerobench.launch.slurm.options import Launcher
from zerobench.records.folder import RunFolder, TrialFolder


def executor(launcher: Launcher = Launcher.SRUN, gpus: int = 8, stop: Stop | None = None) -> SlurmExecutor:
    allocation = Allocation(41, 3, 0, ("n1", "n2"), 64, gpus, "host1")
    return SlurmExecutor(allocation, Interpreter("python"), stop or Stop(), launcher)


def put(trial: TrialSpec, run: Path) -> TrialFolder:
    folder = RunFolder(run).trial(trial.trial_id)
    folder.path.mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"num_nodes": 3}, "num_nodes: 3 nodes, and job 41_3 has 2"),
        ({"num_nodes": 2, "gpus_per_node": 16}, "gpus_per_node: 16, and Slurm gave 8 a node"),
    ],
)
def test_a_trial_that_takes_more_than_the_job_has_is_refused(fields: dict[str, object], told: str) -> None:
    with pytest.raises(UserError, match=told):
        executor().check(standin_trial("big", None, **fields))


@pytest.mark.parametrize(
    "fields", [{}, {"num_nodes": 1}, {"num_nodes": 64, "gpus_per_node": 16, "evidence": Evidence.SOLO}]
)
def test_a_trial_that_fits_or_that_one_rank_plays_alone_is_taken(fields: dict[str, object]) -> None:
    executor().check(standin_trial("fits", None, **fields))


def test_nodes_without_gpus_take_as_many_ranks_as_are_asked_for() -> None:
    executor(gpus=0).check(standin_trial("cpu", gpus_per_node=16))


def test_a_trial_takes_the_first_nodes_of_the_job() -> None:
    assert executor().nodes(standin_trial("two")) == ["n1", "n2"]
    assert executor().nodes(standin_trial("one", num_nodes=1)) == ["n1"]
    assert executor().nodes(standin_trial("solo", num_nodes=64, evidence=Evidence.SOLO)) == ["n1"]


def test_ranks_find_their_master_by_the_name_of_this_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    two, one = standin_trial("two"), standin_trial("one", num_nodes=1)
    assert executor().launch(two, put(two, tmp_path)).added["MASTER_ADDR"] == "host1"
    assert executor().launch(one, put(one, tmp_path)).added["MASTER_ADDR"] == "127.0.0.1"


def test_a_master_that_the_batch_script_names_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "host1-ib0")
    trial = standin_trial("two")
    assert executor().launch(trial, put(trial, tmp_path)).added["MASTER_ADDR"] == "host1-ib0"


def test_the_script_that_makes_ranks_of_tasks_is_kept_with_the_run(tmp_path: Path) -> None:
    trial = standin_trial("two")
    script = RunFolder(tmp_path).slurm / "rank.sh"
    launch = executor().launch(trial, put(trial, tmp_path))
    assert str(script) in launch.argv
    assert script.read_text() == rank_script_text()


def test_deepspeeds_launcher_gets_a_hostfile_of_the_jobs_nodes(tmp_path: Path) -> None:
    trial = standin_trial("two", gpus_per_node=8)
    folder = put(trial, tmp_path)
    launch = executor(Launcher.DEEPSPEED).launch(trial, folder)
    hostfile = folder.path / "hostfile"
    assert hostfile.read_text() == "n1 slots=8\nn2 slots=8\n"
    assert str(hostfile) in launch.argv


@pytest.mark.parametrize(
    ("launcher", "code", "of_rank"),
    [
        (Launcher.SRUN, 137, -9),
        (Launcher.SRUN, 3, 3),
        (Launcher.DEEPSPEED, 247, -9),
        (Launcher.DEEPSPEED, 1, 1),
        (Launcher.SRUN, None, None),
    ],
)
def test_a_launchers_status_is_read_as_that_of_the_first_rank(
    launcher: Launcher, code: int | None, of_rank: int | None
) -> None:
    assert executor(launcher).first_rank_exit(code) == of_rank


def test_other_nodes_are_reached_by_a_step_beside_the_ranks(tmp_path: Path, slurm: Standins) -> None:
    slurm.answer("srun", "echo 'srun: error: n2: no such task' >&2; exit 2")
    trial = standin_trial("two")
    launch = executor().launch(trial, put(trial, tmp_path))
    assert known(launch.elsewhere)("stacks", "mark") == ["stacks: srun exited with 2: srun: error: n2: no such task"]
    [call] = slurm.calls("srun")
    assert "--nodelist=n1,n2" in call
    assert call.endswith("-m zerobench.launch.run.remote stacks mark")


@pytest.mark.parametrize(("number", "steps"), [(signal.SIGTERM, 0), (signal.SIGUSR1, 1)])
def test_while_slurm_ends_the_job_no_step_is_begun(
    tmp_path: Path, slurm: Standins, number: signal.Signals, steps: int
) -> None:
    slurm.answer("srun", "exit 0")
    stop = Stop()
    stop.ask(number)
    trial = standin_trial("two")
    launch = executor(stop=stop).launch(trial, put(trial, tmp_path))
    assert known(launch.elsewhere)("end", "mark") == []
    assert len(slurm.calls("srun")) == steps


def test_only_nodes_that_have_not_said_what_they_are_are_asked(tmp_path: Path, slurm: Standins) -> None:
    slurm.answer("srun", "exit 0")
    (tmp_path / "n1.json").write_text("{}")
    assert capture_nodes(executor(), tmp_path) == []
    assert "--nodelist=n2 " in slurm.calls("srun")[0]
    (tmp_path / "n2.json").write_text("{}")
    capture_nodes(executor(), tmp_path)
    assert len(slurm.calls("srun")) == 1


def test_nodes_that_cannot_say_what_they_are_stop_nothing(tmp_path: Path, slurm: Standins) -> None:
    slurm.answer("srun", "echo 'python: not found' >&2; exit 127")
    assert capture_nodes(executor(), tmp_path) == ["the environment of n1, n2 was not captured: python: not found"]
