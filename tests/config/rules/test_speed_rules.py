"""Settings for speed are refused before launch where nothing would come of them, with the reason."""

import json
from pathlib import Path

from tests.config.machines import CPU, GPUS
from tests.config.rules.refusals import Asking
from zerobench.config.axes.axes import read_axis
from zerobench.config.trial.trial import CrossEntropy

GPU = GPUS.model_copy(update={"num_gpus": 4, "has_liger": True})
BARE_GPU = GPU.model_copy(update={"has_liger": False})
NO_COMPILER = CPU.model_copy(update={"has_inductor": False})
OTHER = {"model_type": "gemma2", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = OTHER | {"model_type": "llama", "num_key_value_heads": 4}
QWEN2 = LLAMA | {"model_type": "qwen2"}
OPERATIONS = {"activation_checkpointing": "ops"}
CHUNKED, LIGER = {"cross_entropy": "chunked"}, {"cross_entropy": "liger"}
SIMULATED = {"evidence": "simulated", "prediction": {"gpu": "h200"}}
ASKING = Asking(strategy="zero3", precision="bf16")
skip = ASKING.skip


test_what_would_fail_or_be_ignored_is_refused_with_its_reason = ASKING.each_refused(
    (CPU, {"strategy": "tensor", **CHUNKED}, "cross_entropy_needs_whole_head", "use it with single, ddp"),
    (CPU, {"strategy": "pipeline", **CHUNKED}, "cross_entropy_needs_whole_head", "has its own loss"),
    (
        CPU,
        {"strategy": "zero1", "ds_config": {"tensor_parallel.autotp_size": 2}, **CHUNKED},
        "cross_entropy_needs_whole_head",
        "AutoTP splits the output head",
    ),
    (CPU, {"model": OTHER, **CHUNKED}, "cross_entropy_needs_plain_head", "not verified for gemma2"),
    (CPU, LIGER, "liger_needs_gpu", "use chunked"),
    (BARE_GPU, LIGER, "liger_needs_gpu", "pip install liger-kernel"),
    (GPU, {**LIGER, "precision": "fp16"}, "liger_needs_gpu", "use bf16"),
    (CPU, {"strategy": "tensor", "compile": "model"}, "compile_needs_own_loop", "use it with single, ddp"),
    (CPU, {"strategy": "fsdp", "compile": "model"}, "compile_needs_own_loop", "use blocks"),
    (CPU, {"compile": "blocks", **SIMULATED}, "compile_needs_device", "predict compile none"),
    (NO_COMPILER, {"compile": "blocks"}, "compile_needs_device", "needs a C++ compiler"),
    (BARE_GPU.model_copy(update={"has_inductor": False}), {"compile": "blocks"}, "compile_needs_device", "and Triton"),
    (CPU, {"compile": "blocks", "steps": {"warmup": 0}}, "compile_needs_device", "set 1"),
    (GPU, {**LIGER, **SIMULATED}, "liger_needs_gpu", "use chunked"),
    (CPU, {**OPERATIONS, "strategy": "ddp", "compile": "blocks"}, "kept_operations_need_eager_mode", "inductor"),
    (CPU, {**OPERATIONS, "model": QWEN2}, "kept_operations_need_no_bias", "adds a bias in place"),
    (CPU, {**OPERATIONS, "model": LLAMA | {"mlp_bias": True}}, "kept_operations_need_no_bias", "use every-2"),
)


test_what_runs_is_not_refused = ASKING.each_allowed(
    (CPU, CHUNKED),
    (CPU, {"strategy": "fsdp", **CHUNKED}),
    (CPU, {"strategy": "single", "gpus_per_node": 1, **CHUNKED}),
    (CPU, {**CHUNKED, **SIMULATED}),
    (CPU, {**CHUNKED, **SIMULATED, "evidence": "formula"}),
    (CPU, {"strategy": "fsdp", "compile": "blocks"}),
    (CPU, {"strategy": "ddp", "compile": "model", **CHUNKED}),
    (GPU, LIGER),
    (GPU, {**LIGER, "evidence": "solo"}),
    (CPU, {**OPERATIONS, "strategy": "ddp"}),
    (CPU, {**OPERATIONS, "model": LLAMA}),
    (CPU, {**OPERATIONS, "model": QWEN2, "strategy": "zero2"}),
    (CPU, {**OPERATIONS, "model": QWEN2, "ds_config": {"zero_optimization.memory_efficient_linear": False}}),
    (CPU, {"model": QWEN2, "activation_checkpointing": "every-2"}),
)


def test_a_users_own_file_says_whose_linear_layer_runs(tmp_path: Path) -> None:
    file = tmp_path / "torchs.json"
    asked = {**OPERATIONS, "model": QWEN2, "ds_config_file": str(file)}
    for of_deepspeed in (True, False):
        zero = {"stage": 3, "memory_efficient_linear": of_deepspeed}
        file.write_text(json.dumps({"bf16": {"enabled": "auto"}, "zero_optimization": zero}), encoding="utf-8")
        assert (skip(CPU, **asked) is None) is not of_deepspeed


def test_the_axes_are_read_by_their_names() -> None:
    assert read_axis("compile", ["none", None, "blocks", "model"], "axes") == ["none", "none", "blocks", "model"]
    assert read_axis("cross_entropy", ["full", "chunked", "liger", "model_dtype"], "axes") == list(CrossEntropy)


def test_an_older_trial_keeps_its_hash() -> None:
    spec = ASKING.trial(strategy="zero1")
    chunked = spec.model_copy(update={"cross_entropy": CrossEntropy.CHUNKED})
    assert "cross_entropy" not in spec.model_dump_json(exclude_defaults=True)
    assert chunked.config_hash != spec.config_hash
    assert chunked.parity_hash == spec.parity_hash
