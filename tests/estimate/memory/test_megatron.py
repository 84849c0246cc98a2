"""What tensor parallelism cuts, and what its ranks send each other."""

from typing import Any

import pytest

from zerobench.common.vocabulary import Category, StepKind
from zerobench.config.deepspeed.case import Case
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.optimizers import Optimizer
from zerobench.estimate.memory.deepspeed.setting import Setting
from zerobench.estimate.memory.deepspeed.stage_0 import plain_device
from zerobench.estimate.memory.megatron import Parts, cut_logits_bytes, own_tensors, tensor_device
from zerobench.estimate.memory.terms.activations import Logits
from zerobench.estimate.memory.terms.kept import Shape

HIDDEN, INNER, VOCAB, LAYERS = 64, 112, 509, 2


def model(**config: Any) -> ModelSpec:
    shape = {"hidden_size": HIDDEN, "intermediate_size": INNER, "vocab_size": VOCAB, "num_hidden_layers": LAYERS}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4}
    return ModelSpec(
        name="m", hf_config={"model_type": "llama", **shape, **heads, "tie_word_embeddings": False, **config}
    )


def test_the_rows_of_the_head_are_cut_as_torch_cuts_them_and_the_last_rank_has_the_rest() -> None:
    assert [Parts(4, rank, 509).vocabulary for rank in range(4)] == [128, 128, 128, 125]
    assert [Parts(4, rank, 9).vocabulary for rank in range(4)] == [3, 3, 3, 0]
    assert [Parts(4, rank, 5).vocabulary for rank in range(4)] == [2, 2, 1, 0]


def test_heads_inner_width_and_logits_are_divided_and_the_hidden_size_is_not() -> None:
    whole = Shape(96, 32, HIDDEN, 8, 4, 8, INNER, VOCAB, LAYERS, 2, eager=False)
    assert Parts(2, 1, VOCAB).shape(whole) == Shape(96, 32, HIDDEN, 4, 2, 8, INNER // 2, 254, LAYERS, 2, eager=False)


@pytest.mark.parametrize("rank", [0, 1])
def test_every_matrix_is_cut_and_norms_are_whole(rank: int) -> None:
    width, kv = HIDDEN, 32
    layer = (HIDDEN * width // 2, HIDDEN * kv // 2, HIDDEN * kv // 2, width * HIDDEN // 2)
    mlp = (HIDDEN * INNER // 2,) * 3
    head = HIDDEN * (255, 254)[rank]
    expected = (VOCAB * HIDDEN // 2, *(*layer, *mlp, HIDDEN, HIDDEN) * LAYERS, HIDDEN, head)
    assert own_tensors(model(), Parts(2, rank, VOCAB)) == expected


def test_biases_of_column_cut_matrices_are_cut_and_those_of_row_cut_ones_are_whole() -> None:
    kv = 32
    found = own_tensors(model(attention_bias=True, mlp_bias=True), Parts(2, 0, VOCAB))[1:-2]
    query, key = (HIDDEN * HIDDEN // 2, HIDDEN // 2), (HIDDEN * kv // 2, kv // 2)
    up = (HIDDEN * INNER // 2, INNER // 2)
    down = (HIDDEN * INNER // 2, HIDDEN)
    output = (HIDDEN * HIDDEN // 2, HIDDEN)
    assert found == (*query, *key, *key, *output, *up, *up, *down, HIDDEN, HIDDEN) * LAYERS


def test_qwen2_has_biases_of_queries_keys_and_values_alone_whatever_its_config_says() -> None:
    kv = 32
    found = own_tensors(model(model_type="qwen2", attention_bias=True, mlp_bias=True), Parts(2, 0, VOCAB))[1:-2]
    query, key = (HIDDEN * HIDDEN // 2, HIDDEN // 2), (HIDDEN * kv // 2, kv // 2)
    mlp = (HIDDEN * INNER // 2,) * 3
    assert found == (*query, *key, *key, HIDDEN * HIDDEN // 2, *mlp, HIDDEN, HIDDEN) * LAYERS


@pytest.mark.parametrize(("largest", "drawn"), [(1000, 1000), (2**24 + 1, 2**24 + 1), (2**25 + 1, 2**25)])
def test_a_start_holds_the_parts_and_one_whole_tensor_that_is_drawn_in_two_pieces_at_a_time(
    largest: int, drawn: int
) -> None:
    case = Case({"bf16": {"enabled": True}, "zero_optimization": {"stage": 0}}, 1, 300)
    setting = Setting(case, (200, 100), Optimizer.ADAMW)
    moments, plain = tensor_device(setting, StepKind.FIRST, largest), plain_device(setting, StepKind.FIRST)
    assert dict(moments.init[0]) == {Category.PARAMETERS: 600, Category.TEMPORARIES: 2 * largest + 4 * drawn}
    assert (moments.init[1:], moments.step) == (plain.init, plain.step)


def test_cut_logits_take_a_copy_more_than_whole_ones() -> None:
    assert cut_logits_bytes(10, 7, 2) == Logits(4 * 70 + 80, 14 * 70 + 80, 16 * 70 + 80, 2 * 70)
    assert cut_logits_bytes(10, 7, 4) == Logits(4 * 70 + 80, 12 * 70 + 80, 16 * 70 + 80, 4 * 70)
