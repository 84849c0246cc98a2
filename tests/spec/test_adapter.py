"""What an adapter and a pattern of frozen weights may be, and where they are refused."""

from typing import Any

import pytest

from tests.spec.machines import CPU
from tests.sweeping.test_speed_rules import ASKING, skip
from zerobench.errors import UserError
from zerobench.spec.adapter import Lora, lora_of
from zerobench.spec.trial import TrialSpec
from zerobench.sweeping.axes import read_axis

LORA = {"adapter": "lora-8"}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("none", None),
        (None, None),
        ("lora-16", "lora-16"),
        ("lora-16:q_proj+v_proj", "lora-16:q_proj+v_proj"),
        ("lora-16-nf4", "lora-16-nf4"),
        ({"lora": {"rank": 8}}, "lora-8"),
        ({"lora": {"rank": 8, "base": "int8", "targets": ["q_proj"]}}, "lora-8-int8:q_proj"),
        ({"lora": {"rank": 8, "targets": "all-linear"}}, "lora-8"),
        ({"lora": {"rank": "8", "targets": ["q_proj", "v_proj"]}}, "lora-8:q_proj+v_proj"),
    ],
)
def test_an_adapter_is_one_text_however_it_is_written(written: object, read: str | None) -> None:
    assert read_axis("adapter", written, "axes") == [read]


def test_its_text_says_rank_and_targets() -> None:
    assert lora_of("lora-16") == Lora(16, ())
    assert lora_of("lora-4:q_proj+v_proj") == Lora(4, ("q_proj", "v_proj"))
    assert lora_of("lora-4-nf4:q_proj") == Lora(4, ("q_proj",), "nf4")


@pytest.mark.parametrize(
    ("axis", "written", "said"),
    [
        ("adapter", "lora", "lora-RANK"),
        ("adapter", "lora-0", "lora-RANK"),
        ("adapter", "lora-9999", "lora-RANK"),
        ("adapter", 16, "choices: none, lora-RANK"),
        ("adapter", "qlora-16", "are written lora-16-nf4"),
        ("adapter", "lora-16-fp4", "lora-RANK-nf4"),
        ("adapter", {"lora": {"rank": 8, "base": "bf16"}}, "choices: nf4, int8"),
        ("adapter", {"lora": {"targets": ["q_proj"]}}, "a mapping of rank, targets and base"),
        ("adapter", {"lora": {"rank": 8, "targets": [1]}}, "all-linear, or a list of names"),
        ("adapter", {"dora": {}}, "choices: none"),
        ("frozen", "layers.(", "a regular expression"),
        ("frozen", 3, "choices: null, or a regular expression"),
    ],
)
def test_what_is_none_is_refused_in_one_line_with_what_may_be(axis: str, written: object, said: str) -> None:
    with pytest.raises(UserError) as refused:
        read_axis(axis, written, "axes")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "rule", "reason"),
    [
        ({"strategy": "tensor", **LORA}, "frozen_needs_loop", "use single, ddp, zero0"),
        ({"strategy": "pipeline", "frozen": "embed"}, "frozen_needs_loop", "frozen 'embed' at pipeline"),
        ({"strategy": "zero1", "ds_config": {"tensor_parallel.autotp_size": 2}, **LORA}, "frozen_is_not_cut", "AutoTP"),
        (
            {"evidence": "formula", "strategy": "zero3", "offload_param": "nvme", "nvme_path": "/drive", **LORA},
            "frozen_has_no_formula",
            "use simulated or emulated",
        ),
        (
            {"frozen": "no such name"},
            "frozen_is_found",
            "found in no parameter's name; names: model.embed_tokens.weight",
        ),
        ({"frozen": "weight"}, "frozen_is_found", "found in every parameter's name"),
        ({"strategy": "ddp", "checkpoint": {"every_steps": 2}, **LORA}, "frozen_is_not_saved", "use zero0 to zero3"),
        ({"frozen": "embed", **LORA}, "adapter_freezes_all", "freezes all weights"),
        ({"strategy": "zero3", "adapter": "lora-8-int8"}, "base_is_not_divided", "use nf4"),
        ({"strategy": "zero2", "adapter": "lora-8-nf4", "compile": "blocks"}, "base_is_not_compiled", "graph"),
    ],
)
def test_what_cannot_be_is_refused_before_launch_with_its_reason(
    fields: dict[str, Any], rule: str, reason: str
) -> None:
    ASKING.refused(rule, reason, **fields)


@pytest.mark.parametrize("strategy", ["single", "ddp", "zero0", "zero1", "zero2", "zero3", "fsdp"])
def test_what_trains_the_whole_model_on_each_rank_or_divides_it_takes_adapters(strategy: str) -> None:
    assert skip(CPU, strategy=strategy, gpus_per_node=1 if strategy == "single" else 2, **LORA) is None


def test_losses_are_held_against_a_reference_that_trains_the_same_weights() -> None:
    base = {"model": {"name": "m", "hf_config": {"model_type": "llama"}}, "strategy": "zero3"}
    hashes = [TrialSpec.model_validate(base | more).parity_hash for more in ({}, LORA, {"frozen": "embed"})]
    assert len(set(hashes)) == 3
