"""If DeepSpeed's builder cannot read its list of architectures, the reason names the list and a remedy."""

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import deepspeed.accelerator
import pytest
from deepspeed.ops.op_builder.fused_adam import FusedAdamBuilder

from zerobench.common.vocabulary import Status
from zerobench.config.deepspeed import kernels
from zerobench.config.deepspeed.kernels import ARCHITECTURES, architectures_unread, name_architectures
from zerobench.rank.ledger.device import Device
from zerobench.rank.ledger.failures import describe
from zerobench.rank.ledger.recorder import Marks
from zerobench.rank.loop.compile_kernels import _compile
from zerobench.rank.loop.rank import RankRun


@pytest.mark.parametrize(("asked", "is_read"), [("9.0a", False), ("Hopper", False), ("8.0 9.0+PTX", True)])
def test_what_deepspeeds_builder_cannot_read_is_what_is_changed_or_told(
    monkeypatch: pytest.MonkeyPatch, asked: str, is_read: bool
) -> None:
    monkeypatch.setenv(ARCHITECTURES, asked)
    builder = FusedAdamBuilder()
    builder.jit_mode = True
    told = None
    try:
        builder.compute_capability_args()
    except ValueError as error:
        told = architectures_unread(error, os.environ)
    advice = "set it to the GPU's compute capability, such as 9.0"
    assert told == (None if is_read else f"{ARCHITECTURES} is {asked}, which DeepSpeed's builder cannot read: {advice}")
    if asked == "9.0a":
        name_architectures(os.environ)
        builder.compute_capability_args()
    assert architectures_unread(ValueError("another"), os.environ) is None


def test_a_kernel_whose_architectures_cannot_be_read_says_which_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    class Builder(FusedAdamBuilder):  # type: ignore[misc] # deepspeed is untyped
        """As on a machine with a GPU, up to its compiler."""

        def is_compatible(self, verbose: bool = False) -> bool:
            return True

        def load(self, verbose: bool = False) -> None:
            self.jit_mode = True
            self.compute_capability_args()

    accelerator = SimpleNamespace(create_op_builder=lambda _: Builder())
    monkeypatch.setattr(deepspeed.accelerator, "get_accelerator", lambda: accelerator)
    monkeypatch.setenv(ARCHITECTURES, "Hopper")
    told, raised = (_compile("fused_adam") or "").splitlines()
    assert told.startswith(f"{ARCHITECTURES} is Hopper, which DeepSpeed's builder cannot read: set it to")
    assert raised.startswith("ValueError: invalid literal for int()")
    status, failure = describe(failure_of(Builder().load), Marks(), 0, None)
    assert (status, failure.exception) == (Status.CRASH, "ValueError")
    assert failure.message.endswith(told)


@pytest.mark.parametrize(("is_cuda", "named"), [(True, "9.0"), (False, "9.0a")])
def test_a_rank_on_a_gpu_names_them_so_that_they_can_be_read_and_notes_it(
    monkeypatch: pytest.MonkeyPatch, is_cuda: bool, named: str
) -> None:
    """A builder reads them each time that it loads a kernel, be it compiled or not."""
    monkeypatch.setenv(ARCHITECTURES, "9.0a")
    monkeypatch.setattr(kernels, "missing", lambda _names, _environ: [])
    rank: Any = SimpleNamespace(world=SimpleNamespace(trains=True), record=SimpleNamespace(notes=[]))
    RankRun._announce_compilation(
        rank, {"optimizer": {"type": "AdamW"}}, cast("Device", SimpleNamespace(is_cuda=is_cuda))
    )
    assert os.environ[ARCHITECTURES] == named
    assert [note.partition(" is ")[0] for note in rank.record.notes] == [ARCHITECTURES] * is_cuda


def failure_of(act: Callable[[], object]) -> BaseException:
    with pytest.raises(ValueError, match="invalid literal") as caught:
        act()
    return caught.value
