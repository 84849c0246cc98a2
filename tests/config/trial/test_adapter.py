"""What an adapter and a pattern of frozen weights may be, and where they are refused."""

import pytest

from tests.config.machines import CPU
from tests.config.rules.test_speed_rules import ASKING, skip
from tests.tools.refusals import one_line
from zerobench.config.axes.axes import read_axis
from zerobench.config.trial.adapter import Lora, is_wide, lora_of, quantised_bytes
from zerobench.config.trial.trial import TrialSpec

LORA = {"adapter": "lora-8"}
WIDE = {"adapter": "lora-8-fp32", "precision": "bf16"}
KEPT_HASHES = {"lora-16": "cee8ad1e85d4", "lora-16-nf4:q_proj+v_proj": "1a75fd20582a"}


@pytest.mark.parametrize(
    ("base", "codes", "scales"),
    [("nf4", 64 * 130 // 2, 130 + 4 + 4 * (16 + 256 + 1)), ("int8", 64 * 130, 4 * 64)],
)
def test_a_quantised_matrix_is_codes_and_what_they_are_scaled_by(base: str, codes: int, scales: int) -> None:
    assert quantised_bytes(base, 64, 130) == (codes, scales)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("none", None),
        (None, None),
        ("lora-16", "lora-16"),
        ("lora-16:q_proj+v_proj", "lora-16:q_proj+v_proj"),
        ("lora-16-nf4", "lora-16-nf4"),
        ("lora-16-fp32", "lora-16-fp32"),
        ("lora-16-fp32-nf4:q_proj", "lora-16-fp32-nf4:q_proj"),
        ({"lora": {"rank": 8}}, "lora-8"),
        ({"lora": {"rank": 8, "base": "int8", "targets": ["q_proj"]}}, "lora-8-int8:q_proj"),
        ({"lora": {"rank": 8, "targets": "all-linear"}}, "lora-8"),
        ({"lora": {"rank": "8", "targets": ["q_proj", "v_proj"]}}, "lora-8:q_proj+v_proj"),
        ({"lora": {"rank": 8, "dtype": "fp32"}}, "lora-8-fp32"),
        (
            {"lora": {"base": "int8", "dtype": "fp32", "targets": ["q_proj"], "rank": 8}},
            "lora-8-fp32-int8:q_proj",
        ),
    ],
)
def test_an_adapter_is_one_text_however_it_is_written(written: object, read: str | None) -> None:
    assert read_axis("adapter", written, "axes") == [read]


def test_its_text_says_rank_and_targets() -> None:
    assert lora_of("lora-16") == Lora(16, ())
    assert lora_of("lora-4:q_proj+v_proj") == Lora(4, ("q_proj", "v_proj"))
    assert lora_of("lora-4-nf4:q_proj") == Lora(4, ("q_proj",), "nf4")


def test_its_text_says_that_it_is_in_fp32_and_otherwise_it_is_in_the_models_type() -> None:
    assert lora_of("lora-4-fp32") == Lora(4, (), None, "fp32")
    assert lora_of("lora-4-fp32-nf4:q_proj+v_proj") == Lora(4, ("q_proj", "v_proj"), "nf4", "fp32")
    assert [is_wide(text) for text in (None, "lora-4", "lora-4:fp32", "lora-4-int8")] == [False] * 4
    assert is_wide("lora-4-fp32-int8")


@pytest.mark.parametrize(
    ("precision", "adapter", "in_16_bits"),
    [
        ("bf16", None, True),
        ("bf16", "lora-8", True),
        ("bf16", "lora-8-fp32", False),
        ("fp16", "lora-8-fp32-nf4", False),
        ("fp32", "lora-8", False),
    ],
)
def test_a_trial_knows_in_which_type_it_trains(precision: str, adapter: str | None, in_16_bits: bool) -> None:
    base = {"model": {"name": "m", "hf_config": {"model_type": "llama"}}, "strategy": "single"}
    trial = TrialSpec.model_validate(base | {"precision": precision, "adapter": adapter})
    assert trial.trains_in_16_bits is in_16_bits


def test_trials_with_the_texts_of_before_keep_their_ids() -> None:
    base = {"model": {"name": "m", "hf_config": {"model_type": "llama"}}, "strategy": "ddp", "precision": "bf16"}
    hashes = [TrialSpec.model_validate(base | {"adapter": text}).config_hash for text in KEPT_HASHES]
    assert hashes == [*KEPT_HASHES.values()]


@pytest.mark.parametrize(
    ("axis", "written", "said"),
    [
        ("adapter", "lora", "lora-RANK"),
        ("adapter", "lora-0", "lora-RANK"),
        ("adapter", "lora-9999", "lora-RANK"),
        ("adapter", 16, "choices: none, lora-RANK"),
        ("adapter", "qlora-16", "are written lora-16-nf4"),
        ("adapter", "lora-16-fp4", "lora-RANK-nf4"),
        ("adapter", "lora-16-nf4-fp32", "lora-RANK-fp32-nf4"),
        ("adapter", "lora-16-fp32-fp32", "lora-RANK-fp32"),
        ("adapter", "lora-16-bf16", "lora-RANK-fp32"),
        ("adapter", {"lora": {"rank": 8, "dtype": "bf16"}}, "adapter.lora.dtype: 'bf16' is not known; choices: fp32"),
        ("adapter", {"lora": {"rank": 8, "base": "bf16"}}, "choices: nf4, int8"),
        ("adapter", {"lora": {"targets": ["q_proj"]}}, "a mapping of rank, targets, base and dtype"),
        ("adapter", {"lora": {"rank": 8, "targets": [1]}}, "all-linear, or a list of names"),
        ("adapter", {"dora": {}}, "choices: none"),
        ("frozen", "layers.(", "a regular expression"),
        ("frozen", 3, "choices: null, or a regular expression"),
    ],
)
def test_what_is_none_is_refused_in_one_line_with_what_may_be(axis: str, written: object, said: str) -> None:
    with one_line(said):
        read_axis(axis, written, "axes")


test_what_cannot_be_is_refused_before_launch_with_its_reason = ASKING.each_refused(
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
    *(
        ({"strategy": f"zero{stage}", **WIDE}, "wide_is_not_cast", "DeepSpeed casts every parameter to bf16")
        for stage in (0, 1, 2)
    ),
    ({"strategy": "zero3", "zero_init": False, **WIDE}, "wide_is_not_cast", "DeepSpeed casts every parameter"),
    ({"strategy": "zero3", **WIDE}, "wide_is_not_cast", "under zero.Init is not known here; use single"),
    ({"strategy": "zero3", **WIDE, "adapter": "lora-8-fp32-nf4"}, "wide_is_not_cast", "DeepSpeed casts every"),
    ({"strategy": "zero1", "evidence": "formula", **WIDE}, "frozen_has_no_formula", "use single, ddp or fsdp"),
    ({"strategy": "ddp", "precision": "fp32", "adapter": "lora-8-fp32"}, "wide_is_not_cast", "leave -fp32 out"),
    ({"strategy": "tensor", **WIDE}, "frozen_needs_loop", "use single, ddp, zero0"),
    (
        {"strategy": "ddp", **WIDE, "checkpoint": {"every_steps": 2}},
        "frozen_is_not_saved",
        "use zero0 to zero3 without -fp32",
    ),
)


@pytest.mark.parametrize("strategy", ["single", "ddp", "zero0", "zero1", "zero2", "zero3", "fsdp"])
def test_what_trains_the_whole_model_on_each_rank_or_divides_it_takes_adapters(strategy: str) -> None:
    assert skip(CPU, strategy=strategy, gpus_per_node=1 if strategy == "single" else 2, **LORA) is None


@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp"])
@pytest.mark.parametrize("adapter", ["lora-8-fp32", "lora-8-fp32-nf4:q_proj"])
@pytest.mark.parametrize("evidence", ["measured", "formula"])
def test_what_casts_no_parameter_takes_adapters_in_fp32(strategy: str, adapter: str, evidence: str) -> None:
    ranks = 1 if strategy == "single" else 2
    asked = {"strategy": strategy, "gpus_per_node": ranks, "precision": "bf16", "evidence": evidence}
    assert skip(CPU, **asked, adapter=adapter) is None


def test_losses_are_held_against_a_reference_that_trains_the_same_weights() -> None:
    base = {"model": {"name": "m", "hf_config": {"model_type": "llama"}}, "strategy": "zero3"}
    hashes = [TrialSpec.model_validate(base | more).parity_hash for more in ({}, LORA, {"frozen": "embed"})]
    assert len(set(hashes)) == 3
