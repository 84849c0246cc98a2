"""A trial whose ranks run in an environment of their own is started by that environment's Python."""

from pathlib import Path

import pytest

from zerobench.common.environments import PACKAGES, VARIABLE, environment
from zerobench.common.errors import UserError
from zerobench.launch.run.environment_launch import environment_argv
from zerobench.launch.run.executor import LocalExecutor
from zerobench.launch.run.launcher import command_text
from zerobench.records.folder import TrialFolder

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", list(PACKAGES))
def test_the_command_is_the_golden_one(name, monkeypatch):
    monkeypatch.setattr("sys.executable", "/venv/bin/python")
    argv = environment_argv(Path(f"/environments/{name}/bin/python"), name, TrialFolder(Path("/runs/trials/one")))
    assert command_text(argv, {}) == (GOLDEN / f"environment_{name}.txt").read_text()


def test_a_trial_gets_its_environments_python_zerobench_and_nothing_of_our_packages(tmp_path, make_trial, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    own = environment("horovod")
    own.python.parent.mkdir(parents=True)
    own.python.touch()
    own.made.write_text("{}")
    launch = LocalExecutor(num_cpus=4, num_gpus=0).launch(make_trial(strategy="horovod"), TrialFolder(tmp_path))
    assert launch.argv[0] == str(own.python)
    assert launch.added["PYTHONPATH"] == str(own.code())
    assert launch.added["MASTER_ADDR"] == "127.0.0.1"
    assert launch.added["OMP_NUM_THREADS"] == "2"


def test_one_that_is_gone_since_the_plan_was_made_is_refused_with_the_remedy(tmp_path, make_trial, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(UserError, match=r"not set up in .*; run: zerobench setup horovod"):
        LocalExecutor(num_cpus=4, num_gpus=0).launch(make_trial(strategy="horovod"), TrialFolder(tmp_path))
