"""An exception in a backward hook on the simulated GPU ends the rank with its reason, not by a signal."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.tools.laid_out import trial_laid_out
from tests.tools.tiny_trial import tiny
from zerobench.common.vocabulary import Phase, Status
from zerobench.config.trial.trial import PredictionSpec
from zerobench.records.folder import TrialFolder
from zerobench.records.records import RankRecord

REASON = "the gradient came twice"
STATUS = 7


def fail(*_: Any) -> NoReturn:
    raise AssertionError(REASON)


def exit_status(run: Callable[[], object]) -> int:
    """Exit status of a process that calls `run`, which may end the process or return."""
    process = os.fork()
    if process == 0:
        run()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def backward(kind: str, said: Path) -> None:
    """A backward pass on the simulated GPU with a hook of that kind, which fails."""
    import torch

    from zerobench.rank.worlds.simulation import DEVICE, hooks
    from zerobench.rank.worlds.simulation.tensors import SimulatedTensors

    hooks.install(lambda error: said.write_text(f"{type(error).__name__}: {error}") and STATUS)
    with SimulatedTensors(lambda _flops: None):
        weight = torch.empty(4, 4, device=DEVICE, requires_grad=True)
        if kind == "saved":
            with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, fail):
                out = weight * weight
        else:
            out = weight * weight
        if kind == "gradient":
            out.register_hook(fail)
        if kind == "accumulated":
            weight.register_post_accumulate_grad_hook(fail)
        out.sum().backward()


def ended(kind: str, said: Path) -> int:
    return exit_status(lambda: backward(kind, said))


@pytest.mark.parametrize("kind", ["saved", "gradient", "accumulated"])
def test_the_process_ends_where_the_hook_raised(in_fork: Any, tmp_path: Path, kind: str) -> None:
    assert in_fork(ended, kind, tmp_path / "said") == STATUS
    assert (tmp_path / "said").read_text() == f"AssertionError: {REASON}"


def test_a_pass_whose_hooks_do_not_raise_is_left_alone(in_fork: Any, tmp_path: Path) -> None:
    assert in_fork(ended, "none", tmp_path / "said") == 0
    assert not (tmp_path / "said").exists()


def played(folder: Path) -> int:
    """The exit status of a trial at stage 2, whose hook on each gradient fails."""
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    from zerobench.rank.loop.forked_trial import run_trial

    DeepSpeedZeroOptimizer.reduce_ready_partitions_and_remove_grads = fail
    return exit_status(lambda: os._exit(run_trial(TrialFolder(folder), with_room=False)))


def test_a_trial_whose_engine_fails_in_a_hook_says_why_in_its_record(in_fork: Any, tmp_path: Path) -> None:
    trial = tiny(strategy="zero2", prediction=PredictionSpec(gpu="A100 SXM 80GB"))
    folder = trial_laid_out(tmp_path / "trial", trial)
    assert in_fork(played, folder.path) == 1
    record = RankRecord.model_validate_json(folder.rank_record(0).read_bytes())
    assert record.status is Status.CRASH
    assert record.failure is not None
    assert record.failure.phase is Phase.BACKWARD
    assert REASON in record.failure.message
    assert "reduce_" in (record.failure.traceback or "")
    assert REASON in folder.stderr.read_text()
