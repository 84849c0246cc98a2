"""A run folder is made to be shared: whatever is planted around a run and in its logs, none of it is in its files."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launch.run.standin_talker import LINES
from zerobench.common.redaction import MARK
from zerobench.config.sweep.expand import PlannedTrial
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.machine.environment import capture_environment
from zerobench.launch.run.executor import LocalExecutor
from zerobench.launch.run.observer import Observer
from zerobench.launch.run.runner import run_sweep
from zerobench.records.store import load_run

VARIABLES = {
    "HF_TOKEN": ("{}", "hf_zyxwvutsrqponmlkjihgfedcba9876"),
    "AWS_SECRET_ACCESS_KEY": ("{}", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzzz"),
    "AWS_ACCESS_KEY_ID": ("{}", "AKIAIOSFODNN7ABCDEFG"),
    "WANDB_API_KEY": ("{}", "abcdef0123456789abcdef0123456789abcdef01"),
    "DB_PASSWORD": ("{}", "correct horse battery"),
    "NCCL_TOKEN": ("{}", "plainword"),
    "NCCL_OPTIONS": ("--rate 5 --password {}", "swordfish"),
    "NCCL_PROXY": ("https://user:{}@proxy:8080/x", "hunter2hunter"),
    "NCCL_HEADER": ("Authorization: Bearer {}", "okay.def.ghi"),
    "NCCL_UUID": ("{}", "7c9e6679-7425-40de-944b-e07fc1f90ae7"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, make_trial: Callable[..., TrialSpec]) -> Path:
    """A run whose one trial printed all of them and died."""
    with pytest.MonkeyPatch.context() as patch:
        for name, (pattern, secret) in VARIABLES.items():
            patch.setenv(name, pattern.format(secret))
        result = run_sweep(
            [PlannedTrial(trial=make_trial("talks", gpus_per_node=1))],
            {"name": "secrets"},
            environment=capture_environment(),
            reports=tmp_path_factory.mktemp("reports"),
            executor=LocalExecutor(num_cpus=2, num_gpus=0, worker_module="standin_talker"),
            observer=Observer(),
        )
    return result.folder.path


def test_no_file_of_a_run_holds_a_secret_that_was_planted_around_it(folder: Path) -> None:
    secrets = [secret for _, secret in VARIABLES.values()] + list(LINES.values())
    files = [path for path in folder.rglob("*") if path.is_file()]
    leaks = [(path.name, secret) for path in files for secret in secrets if secret.encode() in path.read_bytes()]
    assert leaks == []


def test_what_was_printed_is_still_there_but_for_the_secrets(folder: Path) -> None:
    (trial,) = load_run(folder).trials()
    printed = "".join(path.read_text() for path in folder.rglob("*.log")) + trial.folder.stdout.read_text()
    for pattern in LINES:
        assert pattern.partition("{}")[0].split()[0] in printed
    assert f"train.py --api-key={MARK} --lr 1" in printed
    assert "PYTHONUNBUFFERED=1" in printed
    assert trial.record.failure is not None
    assert f"no login with {MARK}" in (trial.record.failure.evidence or "")
