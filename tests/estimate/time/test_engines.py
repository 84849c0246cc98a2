"""What the host issues for a block, and how many it updates."""

from typing import Any

import pytest

from tests.estimate.time.predicted_trials import gpu, links, predicted
from tests.report.predicted_trial import asked
from tests.tools.known import known
from zerobench.config.models.parameters import count_parameters
from zerobench.config.models.presets import resolve_model
from zerobench.estimate.clock.host import Issue
from zerobench.estimate.clock.kernels import moved_by_element_s, moved_s
from zerobench.estimate.time.engines import (
    device_update_s,
    engines_update_s,
    issue_of,
    late_update_s,
    mapped_update_bytes,
    more_host_update_bytes,
    more_update_bytes,
    piece_launches,
    recast_host_bytes,
    reduces_after,
    updated_blocks,
)
from zerobench.estimate.time.expected import timed_work
from zerobench.estimate.time.passes import decoder_of
from zerobench.estimate.time.terms import Work, updated_parameters

LAYERS = 32
PARAMETERS = 6_738_415_616
"""Of Llama 7B."""


def work(**axes: Any) -> Work:
    return known(timed_work(predicted(**axes), gpu(), links())).replayed[0]


def test_an_update_waits_for_its_host_as_its_engine_does() -> None:
    """ZeRO-1's search for infinities is launched while backward still runs, stage 0's is waited for; torch's update is
    launched while its kernels run.
    """
    late: dict[str, tuple[float, float]] = {}
    for strategy in ("single", "zero0", "zero1"):
        model = resolve_model("gpt2-125m")
        trial = predicted(model=model, strategy=strategy, gpus_per_node=1, optimizer="fused_adamw")
        work, device, decoder = known(timed_work(trial, gpu(), links())).replayed
        late[strategy] = (
            late_update_s(work, device, decoder, ahead_s=0.0),
            late_update_s(work, device, decoder, ahead_s=1.0),
        )
    assert max(late["single"]) < 1e-4
    assert late["zero0"][0] == late["zero0"][1] > 0.01
    assert late["zero1"][0] > late["zero1"][1]


def test_an_engines_update_is_its_optimizers_work_and_its_own() -> None:
    """Per parameter 28 bytes of FusedAdam at the memory's rate, and 46 of ZeRO-1's own on one rank by element."""
    work, device, _ = known(
        timed_work(predicted(strategy="zero1", gpus_per_node=1, optimizer="fused_adamw"), gpu(), links())
    ).replayed
    parameters = known(count_parameters(resolve_model("llama-7b"))).total
    own_s = moved_by_element_s(device, 46 * parameters)
    assert engines_update_s(work, device) == pytest.approx(own_s, rel=0.001)
    assert device_update_s(work, device) == pytest.approx(own_s + moved_s(device, 28 * parameters), rel=0.001)


def test_unless_said_gradients_are_reduced_within_the_pass() -> None:
    model = resolve_model("llama-7b")
    spec, decoder = asked("zero1", model=model), known(decoder_of(model))
    within, after = issue_of(spec, decoder), issue_of(spec, decoder, after=True)
    assert within.reduced == Issue(0.0, 0.0)
    assert after.reduced.python_us > 0
    assert within.backward == after.backward


@pytest.mark.parametrize(
    ("strategy", "frozen", "blocks"),
    [
        ("zero0", None, LAYERS),
        ("zero2", None, LAYERS / 8),
        ("zero3", r"embed|layers\.\d\.|layers\.1[0-5]\.", LAYERS / 2),
        ("zero2", r"embed|layers\.\d\.|layers\.1[0-5]\.", LAYERS / 16),
    ],
)
def test_blocks_are_updated_that_are_trained_at_stages_1_and_2_a_ranks_own(
    strategy: str, frozen: str | None, blocks: float
) -> None:
    assert updated_blocks(asked(strategy, model=resolve_model("llama-7b"), frozen=frozen), LAYERS) == blocks


@pytest.mark.parametrize(("strategy", "gpus", "fused", "adamw", "sgd"), [
    ("single", 1, 36, 88, 44),
    ("ddp", 8, 38, 90, 46),
    ("zero0", 1, 36, 92, 48),
    ("zero0", 8, 36, 92, 48),
    ("zero1", 1, 46, 102, 58),
    ("zero1", 8, 42, 98, 54),
    ("zero2", 1, 46, 102, 58),
    ("zero2", 8, 42, 98, 54),
    ("zero3", 1, 42, 98, 54),
    ("zero3", 8, 42, 98, 54),
    ("fsdp", 1, 16, 68, 24),
    ("fsdp", 8, 16, 68, 24),
])  # fmt: skip
def test_an_update_on_the_device_moves_more_by_its_engine_and_by_its_optimizer(
    strategy: str, gpus: int, fused: int, adamw: int, sgd: int
) -> None:
    """Bytes a parameter, as simulated steps count them: torch's AdamW 52 and SGD 8 more than a fused one; DeepSpeed
    passes once more, 4 bytes, over gradients of another's optimizer, and over those of stages 1 and 2 on one rank.
    """
    found = {}
    for optimizer in ("fused_adamw", "adamw", "sgd"):
        one = work(strategy=strategy, gpus_per_node=gpus, optimizer=optimizer)
        found[optimizer] = more_update_bytes(one) / updated_parameters(one)
        assert more_host_update_bytes(one) == 0.0
    assert found == {"fused_adamw": fused, "adamw": adamw, "sgd": sgd}


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 8), (2, 8), (1, 16), (4, 2)])
@pytest.mark.parametrize(("strategy", "optimizer", "a_parameter"), [
    ("zero2", "cpu_adam", 8 + 6),
    ("zero2", "adamw", 8 + 6 + 8 + 52),
    ("zero3", "adamw", 8 + 6 + 8 + 52),
    ("fsdp", "adamw", 2 * 2 + 16 + 52),
])  # fmt: skip
def test_an_update_on_the_host_moves_what_the_ranks_of_one_node_do(
    nodes: int, gpus: int, strategy: str, optimizer: str, a_parameter: int
) -> None:
    offload = {"offload_optimizer": "cpu"} | ({"offload_param": "cpu"} if strategy == "fsdp" else {})
    one = work(strategy=strategy, optimizer=optimizer, num_nodes=nodes, gpus_per_node=gpus, **offload)
    assert more_update_bytes(one) == 0.0
    assert more_host_update_bytes(one) == pytest.approx(a_parameter * PARAMETERS / nodes, rel=1e-4)


@pytest.mark.parametrize(("axes", "cast"), [
    ({"offload_optimizer": "none", "offload_param": "none"}, 0),
    ({"offload_optimizer": "cpu", "offload_param": "none", "optimizer": "cpu_adam"}, 0),
    ({"offload_optimizer": "none", "offload_param": "cpu"}, 6),
])  # fmt: skip
def test_the_host_casts_new_weights_where_they_lie_there_and_their_states_do_not(
    axes: dict[str, Any], cast: int
) -> None:
    assert recast_host_bytes(work(**axes)) == pytest.approx(cast * PARAMETERS / 8, rel=1e-4)


def test_an_update_maps_anew_what_torchs_optimizers_make_on_the_host() -> None:
    """Two tensors in fp32 of the rank's part, and its weights in 16 bits on their way; CPUAdam makes none of these."""
    offloaded = {"strategy": "zero3", "offload_optimizer": "cpu"}
    by_torch = mapped_update_bytes(work(**offloaded, optimizer="adamw"))
    by_cpu_adam = mapped_update_bytes(work(**offloaded, optimizer="cpu_adam"))
    assert by_cpu_adam == pytest.approx(2 * PARAMETERS / 8, rel=1e-4)
    assert by_torch - by_cpu_adam == pytest.approx(2 * 4 * PARAMETERS / 8, rel=1e-4)
    assert mapped_update_bytes(work(strategy="zero3")) == 0


@pytest.mark.parametrize(("axes", "expected"), [
    ({"strategy": "zero1"}, True),
    ({"strategy": "zero1", "ds_config": {"zero_optimization.overlap_comm": True}}, False),
    ({"strategy": "zero1", "gpus_per_node": 1}, False),
    ({"strategy": "zero1", "gpus_per_node": 1, "num_nodes": 2}, True),
    ({"strategy": "zero2"}, False),
    ({"strategy": "zero0"}, False),
    ({"strategy": "ddp"}, False),
])  # fmt: skip
def test_stage_1_alone_reduces_after_the_passes_unless_it_overlaps(axes: dict[str, Any], expected: bool) -> None:
    assert reduces_after(work(**axes)) is expected


@pytest.mark.parametrize(("axes", "launches"), [
    ({"strategy": "zero2", "optimizer": "adamw"}, 0.0),
    ({"strategy": "zero2", "optimizer": "lion"}, 5.0),
    ({"strategy": "zero2", "optimizer": "adamw_8bit"}, 35.0 * -(-PARAMETERS // 8 // 2**20)),
    ({"strategy": "zero2", "optimizer": "adamw_8bit", "gpus_per_node": 1}, 35.0 * -(-PARAMETERS // 2**20)),
    ({"strategy": "ddp", "optimizer": "lion"}, 5.0 * (32 * 9 + 3)),
    ({"strategy": "zero2", "optimizer": "lion", "offload_optimizer": "cpu"}, 0.0),
])  # fmt: skip
def test_an_optimizer_of_pieces_launches_its_kernels_for_each_piece_or_tensor(
    axes: dict[str, Any], launches: float
) -> None:
    """Of a flat partition in pieces of 2^20 elements; without one, of each of the model's 291 tensors."""
    assert piece_launches(work(**axes)) == launches
