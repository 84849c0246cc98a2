"""Every optimizer's entry is whole, and of one piece with those of its family."""

import pytest

from zerobench.common.vocabulary import Category
from zerobench.config.deepspeed import build_ds_config
from zerobench.config.deepspeed.reading import optimizer_of
from zerobench.config.derived.strategy import is_exact
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.optimizers import (
    OPTIMIZERS,
    STATE_CATEGORIES,
    Optimizer,
    OptimizerInfo,
    State,
    StatesPlace,
    StepTemporaries,
    deepspeeds_adamw,
    plain_optimizer,
)
from zerobench.config.trial.trial import Offload, TrialSpec

MODEL = ModelSpec(name="tiny", hf_config={"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2})
ALL = pytest.mark.parametrize("info", OPTIMIZERS.values(), ids=OPTIMIZERS)


def test_every_name_has_an_entry() -> None:
    assert set(OPTIMIZERS) == set(Optimizer)


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (Optimizer.ADAMW, "4629b131fa7c"),
        (Optimizer.FUSED_ADAMW, "4629b131fa7c"),
        (Optimizer.CPU_ADAM, "4629b131fa7c"),
        (Optimizer.SGD, "ef9da7e9727c"),
    ],
)
def test_the_losses_of_older_records_are_still_held_against_the_same_reference(
    optimizer: Optimizer, expected: str
) -> None:
    assert TrialSpec(model=MODEL, strategy="single", optimizer=optimizer).parity_hash == expected


@ALL
def test_what_runs_without_deepspeed_is_of_the_same_family_and_can_be_made(info: OptimizerInfo) -> None:
    plain = plain_optimizer(info.name)
    assert plain.family == info.family
    assert plain.factory is not None
    assert plain_optimizer(plain.name) is plain


@ALL
def test_states_that_cannot_lie_anywhere_have_another_optimizer_that_can_lie_there(info: OptimizerInfo) -> None:
    assert (info.place is StatesPlace.ANY) == (info.instead == ())
    offloaded = info.place is not StatesPlace.HOST
    assert all(OPTIMIZERS[other].can_place(offloaded=offloaded) for other in info.instead)


@ALL
@pytest.mark.parametrize("offload", [Offload.NONE, Offload.CPU])
def test_deepspeeds_configuration_is_read_back_as_the_optimizer_or_lets_it_be_handed_one(
    info: OptimizerInfo, offload: Offload
) -> None:
    if not info.can_place(offloaded=offload is not Offload.NONE):
        pytest.skip("refused")
    config = build_ds_config(TrialSpec(model=MODEL, strategy="zero2", optimizer=info.name, offload_optimizer=offload))
    if info.deepspeed is None:
        assert "optimizer" not in config
        assert config["zero_allow_untested_optimizer"] is True
        assert config.get("zero_force_ds_cpu_optimizer", True) is (offload is Offload.NONE)
    else:
        assert optimizer_of(config) is info.name


def test_deepspeed_makes_a_kernel_of_its_own_of_adamw_by_itself() -> None:
    assert deepspeeds_adamw(offloaded=False) is Optimizer.FUSED_ADAMW
    assert deepspeeds_adamw(offloaded=True) is Optimizer.CPU_ADAM


def test_every_state_has_one_name_in_the_ledger() -> None:
    states = [state for info in OPTIMIZERS.values() for state in info.states]
    assert all(STATE_CATEGORIES[state.name] is state.category for state in states)


@pytest.mark.parametrize(
    ("changed", "strategy", "expected"),
    [
        ({"inexact": "it rounds"}, "ddp", False),
        ({"inexact_in_parts": "it sees whole tensors"}, "ddp", True),
        ({"inexact_in_parts": "it sees whole tensors"}, "zero1", False),
        ({"inexact_in_parts": "it sees whole tensors"}, "fsdp", False),
        ({"inexact_where_clipped": "it clips the update"}, "zero1", False),
        ({"inexact_where_clipped": "it clips the update"}, "zero0", True),
        ({}, "zero3", True),
    ],
)
def test_losses_of_an_optimizer_that_computes_something_else_are_not_judged(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, object], strategy: str, expected: bool
) -> None:
    monkeypatch.setitem(OPTIMIZERS, Optimizer.ADAMW, OPTIMIZERS[Optimizer.ADAMW].model_copy(update=changed))
    assert is_exact(TrialSpec(model=MODEL, strategy=strategy)) is expected


def test_a_state_in_blocks_has_a_scale_for_each_and_small_tensors_are_kept_in_fp32() -> None:
    state = State(name="m", category=Category.FIRST_MOMENT, element_bytes=1, block_elements=256, least_elements=4096)
    assert state.nbytes(4095) == 4 * 4095
    assert state.nbytes(4096) == 4096 + 4 * 16
    assert state.nbytes(4097) == 4097 + 4 * 17
    assert state.bytes_per_element == 1 + 4 / 256


def test_states_and_temporaries_are_sums_over_the_tensors_of_the_update() -> None:
    half = State(name="halved", category=Category.FIRST_MOMENT, element_bytes=2)
    info = OPTIMIZERS[Optimizer.ADAMW].model_copy(update={"states": (half, half)})
    assert info.states_of([10, 5]) == {Category.FIRST_MOMENT: 60}
    assert info.state_bytes == 4
    temporaries = StepTemporaries(foreach_bytes=4, loop_bytes=8)
    assert temporaries.nbytes([10, 5], on_gpu=True) == 60
    assert temporaries.nbytes([10, 5], on_gpu=False) == 80
    assert temporaries.nbytes([], on_gpu=False) == 0


@pytest.mark.parametrize("on_gpu", [True, False])
@pytest.mark.parametrize(("optimizer", "largest"), [("adamw_8bit", 16 * 2**20), ("lion", 4 * 2**21)])
def test_what_has_no_version_for_all_tensors_takes_the_largest_or_a_piece_of_it_on_gpus_too(
    optimizer: str, largest: int, on_gpu: bool
) -> None:
    assert OPTIMIZERS[Optimizer(optimizer)].temporaries.nbytes([2**21, 2**21], on_gpu=on_gpu) == largest


def test_an_optimizer_is_known_by_deepspeeds_class_and_by_torchs_where_that_has_none() -> None:
    assert OPTIMIZERS[Optimizer.CPU_ADAM].class_name == "DeepSpeedCPUAdam"
    assert OPTIMIZERS[Optimizer.FUSED_ADAMW].class_name == "FusedAdam"
    assert OPTIMIZERS[Optimizer.SGD].class_name == "SGD"
