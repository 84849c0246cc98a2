"""Expected times of fine-tuning: what frozen weights save, and what adapters add."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.prediction.simulated import gpu_trial
from tests.estimate.time.predicted_trials import gpu
from tests.tools.at_least_one import at_least_one
from tests.tools.known import known
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import Precision, TrialSpec
from zerobench.estimate.clock.device import Device, device_of
from zerobench.estimate.clock.kernels import attention_s, fp32_gemm_s, gemm_s
from zerobench.estimate.clock.rates import shipped_rates
from zerobench.estimate.time.known import assumptions
from zerobench.estimate.time.passes import Passes, decoder_of, passes
from zerobench.estimate.time.step_time_tuned import tuned_of
from zerobench.estimate.time.timing_tuned import Tuned, TunedMatrix

TOKENS, POSITIONS = 4096, 2048
LAYERS, HIDDEN, INNER, VOCABULARY = 32, 4096, 11008, 32000
SQUARE, GATE, DOWN = (HIDDEN, HIDDEN), (HIDDEN, INNER), (INNER, HIDDEN)
BLOCK = [*[SQUARE] * 4, GATE, GATE, DOWN]
"""Inputs and outputs of Llama 7B's matrices."""


def asked(**axes: Any) -> TrialSpec:
    return gpu_trial(
        "llama-7b",
        0,
        1,
        **{"strategy": "single", "activation_checkpointing": False, "micro_batch_size": 2} | axes,
    )


def device(**given: Any) -> Device:
    found = device_of(gpu("A100 SXM 80GB"), Precision.BF16)
    assert found is not None
    return replace(found, **{"host": None} | given)


ENDLESS = device(memory_bytes_per_s=1e30)
"""What is moved takes no time on it."""


def timed(on: Device = ENDLESS, **axes: Any) -> Passes:
    spec, decoder = asked(**axes), decoder_of(resolve_model("llama-7b"))
    assert decoder is not None
    again = float(bool(spec.activation_checkpointing))
    return passes(decoder, on, TOKENS, POSITIONS, recomputed=again, tuned=tuned_of(spec))


def own_s(*matrices: tuple[int, int]) -> float:
    """Products for the gradients of weights."""
    return sum(gemm_s(ENDLESS, inputs, outputs, TOKENS) for inputs, outputs in matrices)


def passed_s(*matrices: tuple[int, int]) -> float:
    """Products that pass a gradient on."""
    return sum(gemm_s(ENDLESS, TOKENS, inputs, outputs) for inputs, outputs in matrices)


def test_trained_whole_nothing_is_asked_about_weights() -> None:
    assert tuned_of(asked()) is None


def test_a_model_of_which_only_the_embedding_is_frozen_takes_what_the_whole_one_does() -> None:
    whole, frozen = timed(), timed(frozen="embed_tokens")
    assert frozen.block_forward_s == pytest.approx(whole.block_forward_s)
    assert frozen.head_s == pytest.approx(whole.head_s)
    lacking_s = whole.block_backward_s - frozen.block_backward_s
    assert lacking_s == pytest.approx(0, abs=1e-9)  # the first norm is trained, so that a gradient comes to it


def test_backward_ends_at_the_first_block_that_is_trained() -> None:
    whole, upper = timed(), timed(frozen=r"embed|layers\.\d\.|layers\.1[0-5]\.")
    assert upper.block_forward_s == pytest.approx(whole.block_forward_s)
    assert upper.block_backward_s == pytest.approx(whole.block_backward_s / 2, rel=0.001)
    head = timed(frozen=r"embed|layers\.|model\.norm")
    assert head.block_backward_s == 0
    assert whole.head_s - head.head_s == pytest.approx(passed_s((HIDDEN, VOCABULARY)))


@pytest.mark.parametrize(("frozen", "passes_on"), [(r"embed|layers\.", True), (r"embed|layers\.|model\.norm", False)])
def test_the_head_passes_a_gradient_on_where_the_norm_before_it_is_trained(frozen: str, *, passes_on: bool) -> None:
    assert known(tuned_of(asked(frozen=frozen))).head.passes_on is passes_on


def test_what_is_checkpointed_passes_all_blocks_whatever_is_trained_as_transformers_asks() -> None:
    upper = timed(frozen=r"embed|layers\.\d\.|layers\.1[0-5]\.", activation_checkpointing=True)
    whole = timed(activation_checkpointing=True)
    lower_s = LAYERS / 2 * own_s(*BLOCK)
    assert LAYERS * (whole.block_backward_s - upper.block_backward_s) == pytest.approx(lower_s)


def test_beside_adapters_no_matrix_has_a_gradient_of_its_own() -> None:
    whole, frozen = timed(), timed(adapter="lora-16")
    assert frozen.block_forward_s == pytest.approx(whole.block_forward_s)
    first_s = passed_s(SQUARE, SQUARE, SQUARE)  # the first block's queries, keys and values pass none on
    saved_s = LAYERS * (whole.block_backward_s - frozen.block_backward_s)
    assert saved_s == pytest.approx(LAYERS * own_s(*BLOCK) + first_s)
    assert whole.head_s - frozen.head_s == pytest.approx(own_s((HIDDEN, VOCABULARY)))


@pytest.mark.parametrize(
    ("targets", "adapted"),
    [("q_proj+v_proj", [SQUARE] * 2), ("o_proj", [SQUARE]), ("gate_proj+up_proj+down_proj", [GATE, GATE, DOWN])],
)
def test_adapters_take_what_their_bytes_take_and_only_those_that_are_there(
    targets: str, adapted: list[tuple[int, int]]
) -> None:
    real = device()
    some, every = (timed(real, adapter=adapter) for adapter in (f"lora-16:{targets}", "lora-16"))
    bare_s = timed(real).block_forward_s
    bandwidth = real.memory_bytes_per_s * real.rates.memory_share
    moved = [2 * TOKENS * (inputs + 2 * 16 + 6 * outputs) for inputs, outputs in adapted]
    assert some.block_forward_s - bare_s == pytest.approx(sum(moved) / bandwidth)
    assert some.block_forward_s < every.block_forward_s
    assert some.block_backward_s < every.block_backward_s


@pytest.mark.parametrize(("passes_on", "passed"), [(True, 5), (False, 1)])
def test_backward_an_adapters_two_matrices_and_their_gradients_are_moved(passes_on: bool, passed: int) -> None:
    real, bare = device(), TunedMatrix(HIDDEN, INNER, False, passes_on)
    with_adapter, without = (
        Tuned({matrix: 3}, bare, 1.0, 1.0).matrices_s(real, TOKENS)[1] for matrix in (bare._replace(rank=16), bare)
    )
    moved = 3 * 2 * TOKENS * (passed * HIDDEN + 4 * 16 + 4 * INNER)
    added_s = with_adapter - without
    assert added_s == pytest.approx(moved / (real.memory_bytes_per_s * real.rates.memory_share))


@pytest.mark.parametrize(("base", "moved"), [("nf4", 0.52 + 2), ("int8", 1 + 2)])
def test_a_quantised_matrix_is_made_whole_for_each_pass(base: str, moved: float) -> None:
    real, matrix = device(), TunedMatrix(HIDDEN, INNER, False, True)
    quantised, plain = (Tuned({matrix: 1}, matrix, 1.0, 1.0, of).matrices_s(real, TOKENS) for of in (base, None))
    made_s = moved * HIDDEN * INNER / (real.memory_bytes_per_s * real.rates.memory_share)
    assert [one - other for one, other in zip(quantised, plain, strict=True)] == pytest.approx([made_s, made_s])


def moved_alone_s(on: Device, product: tuple[float, float, float]) -> float:
    rows, columns, inner = product
    share = on.rates.memory_share * shipped_rates().today.fp32.memory_share
    return 4 * (rows * inner + inner * columns + rows * columns) / (on.memory_bytes_per_s * share)


def test_a_thin_product_in_fp32_takes_what_its_bytes_take_and_a_wide_one_what_its_flops_take() -> None:
    real, shares = device(), shipped_rates().today.fp32
    assert real.fp32_flops == 19.5e12
    thin, wide = (TOKENS, HIDDEN, 16), (TOKENS, HIDDEN, HIDDEN)
    assert fp32_gemm_s(real, *thin) == pytest.approx(moved_alone_s(real, thin))
    assert fp32_gemm_s(real, *wide) == pytest.approx(2 * TOKENS * HIDDEN**2 / (19.5e12 * shares.peak_share))
    unknown = replace(real, fp32_flops=None)
    assert fp32_gemm_s(unknown, *wide) == pytest.approx(moved_alone_s(real, wide))


def test_a_product_in_fp32_that_is_narrower_than_a_tile_takes_a_whole_one() -> None:
    endless = fp32_gemm_s(ENDLESS, TOKENS, 16, HIDDEN)
    assert endless == pytest.approx(fp32_gemm_s(ENDLESS, TOKENS, 32, HIDDEN))
    assert endless == pytest.approx(fp32_gemm_s(ENDLESS, TOKENS, 64, HIDDEN) / 2)
    assert fp32_gemm_s(ENDLESS, TOKENS, HIDDEN, 16) == pytest.approx(endless / 2)


WIDE_WORDS = {None: (6, 8 + 10 + 6, 8 + 2 * 6), "nf4": (6, 8 + 6 + 6, 8 + 6)}
"""Bytes that are moved beside products, by what the base is in: an element of the input forward, and of the output
forward and backward. A cast moves 6, a scaling in fp32 8, a sum of both types 10, one in 16 bits 6.
"""


@pytest.mark.parametrize("base", WIDE_WORDS)
@pytest.mark.parametrize("passes_on", [True, False])
def test_an_adapter_in_fp32_is_cast_to_and_from_and_multiplied_in_fp32(base: str | None, *, passes_on: bool) -> None:
    real, bare = device(), TunedMatrix(HIDDEN, INNER, False, passes_on)
    with_adapter, without = (
        Tuned({matrix: 3}, bare, 1.0, 1.0, base).matrices_s(real, TOKENS)
        for matrix in (bare._replace(rank=16, is_wide=True), bare)
    )
    given, forward, backward = WIDE_WORDS[base]
    passed = (6 + 6) * HIDDEN if passes_on else 0
    moved = [TOKENS * (given * HIDDEN + forward * INNER), TOKENS * (passed + backward * INNER)]
    products = [
        [(TOKENS, 16, HIDDEN), (TOKENS, INNER, 16)],
        [(INNER, 16, TOKENS), (TOKENS, 16, INNER), (16, HIDDEN, TOKENS), *[(TOKENS, HIDDEN, 16)] * passes_on],
    ]
    bandwidth = real.memory_bytes_per_s * real.rates.memory_share
    for added, bare_s, nbytes, run in zip(with_adapter, without, moved, products, strict=True):
        expected = nbytes / bandwidth + sum(fp32_gemm_s(real, *product) for product in run)
        assert added - bare_s == pytest.approx(3 * expected)


def test_only_what_the_trial_widens_is_in_fp32_and_the_time_says_so() -> None:
    widened, usual = (tuned_of(asked(adapter=f"lora-16{how}:q_proj")) for how in ("-fp32", ""))
    assert widened is not None
    assert usual is not None
    assert {matrix.is_wide for matrix in widened.matrices if matrix.rank} == {True}
    assert {matrix.is_wide for matrix in usual.matrices} == {False}
    said = [" ".join(assumptions(asked(adapter=f"lora-16{how}"))) for how in ("-fp32", "")]
    assert ["in fp32, cast" in words for words in said] == [True, False]
    assert ["in 16 bits" in words for words in said] == [False, True]


def test_adapters_are_launched_too() -> None:
    sizes = {"": 7, ":q_proj+v_proj": 2, "-fp32": 1.5 * 7, "-fp32:q_proj+v_proj": 1.5 * 2}
    for targets, count in at_least_one(sizes.items()):
        tuned = tuned_of(asked(adapter=f"lora-16{targets}"))
        assert tuned is not None
        assert tuned.launches == pytest.approx(1 + count / 7)


def test_a_quantised_matrix_is_made_whole_for_each_of_its_passes() -> None:
    real, elements = device(), sum(inputs * outputs for inputs, outputs in BLOCK)
    plain, coded = (timed(real, adapter=adapter, activation_checkpointing=True) for adapter in ("lora-8", "lora-8-nf4"))
    whole_s = 2.52 * elements / (real.memory_bytes_per_s * real.rates.memory_share)
    assert coded.block_forward_s - plain.block_forward_s == pytest.approx(whole_s)
    assert coded.block_backward_s - plain.block_backward_s == pytest.approx(2 * whole_s)
    plain, coded = (timed(real, adapter=adapter) for adapter in ("lora-8", "lora-8-nf4"))
    first = 3 * HIDDEN * HIDDEN / elements  # the first block's queries, keys and values pass none on
    backward_s = coded.block_backward_s - plain.block_backward_s
    assert backward_s == pytest.approx((1 - first / LAYERS) * whole_s)


def test_the_host_issues_no_backward_pass_of_blocks_that_it_does_not_come_to() -> None:
    late = device(host=shipped_rates().host.model_copy(update={"launch_s": 0.001}))
    whole, upper = timed(late), timed(late, frozen=r"embed|layers\.\d\.|layers\.1[0-5]\.")
    assert upper.issued_s == pytest.approx((whole.issued_s[0], whole.issued_s[1] / 2))


def test_attention_that_nothing_before_is_trained_of_has_no_backward_pass() -> None:
    _, attention = attention_s(ENDLESS, TOKENS, POSITIONS, HIDDEN)
    first = timed(frozen=r"embed|input_layernorm|[qkv]_proj|layers\.([1-9]|[123]\d)\.")  # the first block's o and MLP
    matrices_s = own_s(SQUARE, GATE, GATE, DOWN) + passed_s(GATE, GATE, DOWN)
    others_s = (LAYERS - 1) * (passed_s(*BLOCK) + attention)
    assert LAYERS * first.block_backward_s == pytest.approx(matrices_s + others_s)
