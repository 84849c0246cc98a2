"""Where environments of their own lie, when one counts as made, and how its Python finds zerobench."""

import subprocess
import sys
from pathlib import Path

import pytest

import zerobench
from zerobench.common.environments import (
    PACKAGES,
    VARIABLE,
    Environment,
    environment,
    environments_folder,
    missing_environments,
    running_in,
)
from zerobench.config.derived.strategy import STRATEGIES


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({VARIABLE: "/big/disk"}, Path("/big/disk")),
        ({"XDG_DATA_HOME": "/data"}, Path("/data/zerobench/environments")),
        ({"XDG_DATA_HOME": "not/absolute"}, Path.home() / ".local/share/zerobench/environments"),
        ({}, Path.home() / ".local/share/zerobench/environments"),
    ],
)
def test_environments_lie_where_the_variable_says_or_in_the_users_data(environ: dict[str, str], folder: Path) -> None:
    assert environments_folder(environ) == folder


def test_every_environment_of_a_strategy_can_be_made_and_each_serves_one() -> None:
    assert {info.environment for info in STRATEGIES.values() if info.environment} == set(PACKAGES)


def test_an_environment_is_missing_until_setup_has_said_that_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    own = environment("horovod")
    own.python.parent.mkdir(parents=True)
    own.python.touch()
    assert "horovod" in missing_environments()
    own.made.write_text("{}")
    assert "horovod" not in missing_environments()


def test_the_code_folder_lends_zerobench_and_none_of_its_neighbours(tmp_path: Path) -> None:
    own = Environment("some", tmp_path)
    assert own.code() == own.code()
    assert [path.name for path in own.code().iterdir()] == ["zerobench"]
    command = [sys.executable, "-c", "import zerobench; print(zerobench.__file__)"]
    told = subprocess.run(
        command, env={"PYTHONPATH": str(own.code())}, cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert told.startswith(str(own.code()))
    assert Path(told).resolve() == Path(zerobench.__file__).resolve()


def test_a_rank_says_with_what_it_runs_and_none_for_what_is_not_installed() -> None:
    said = running_in("horovod")
    assert (said["name"], said["executable"]) == ("horovod", sys.executable)
    assert said["numpy"] is not None
    assert said["horovod"] is None
