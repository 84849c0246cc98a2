"""What is said of a user's own file, and which keys of a sweep stay with which of its trials."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tools.known import known
from zerobench.config.deepspeed import build_ds_config, drop_unread_keys, ds_config_refusal, file_notes
from zerobench.config.deepspeed.facts import fact_of, key_facts
from zerobench.config.deepspeed.obedience import holds, look_of, words
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import TrialSpec

LLAMA = ModelSpec(name="llama-tiny", hf_config={"model_type": "llama", "hidden_size": 256})
ORDINARY = {
    "bf16": {"enabled": True},
    "fp16": {"enabled": False, "loss_scale_window": 100},
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 2, "overlap_comm": True, "stage3_prefetch_bucket_size": 1e6, "offload_param": None},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.999], "torch_adam": True}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 100}},
    "activation_checkpointing": {"partition_activations": True, "cpu_checkpointing": False},
    "tensorboard": {"enabled": True, "output_path": "logs"},
    "wandb": {"enabled": True, "project": "mine"},
    "csv_monitor": {"enabled": False, "output_path": "logs"},
    "flops_profiler": {"enabled": True, "profile_step": 5},
    "comms_logger": {"enabled": True},
    "wall_clock_breakdown": True,
    "steps_per_print": 10,
    "dump_state": False,
    "zero_allow_untested_optimizer": True,
    "aio": {"queue_depth": 16},
}
"""What a file of somebody's own may hold beside what a trial reads."""


def trial(strategy: str = "zero2", **fields: Any) -> TrialSpec:
    return TrialSpec(**{"model": LLAMA, "strategy": strategy, "gpus_per_node": 2} | fields)


def of_file(folder: Path, config: dict[str, Any], strategy: str = "zero2", **fields: Any) -> TrialSpec:
    (folder / "my.json").write_text(json.dumps(config))
    return trial(strategy, ds_config_file=str(folder / "my.json"), **fields)


def test_an_ordinary_file_is_used_and_each_key_that_the_trial_does_not_read_is_named(tmp_path: Path) -> None:
    spec = of_file(tmp_path, ORDINARY)
    assert ds_config_refusal(spec) is None
    said = "\n".join(file_notes(spec))
    for key in (
        "tensorboard.enabled, tensorboard.output_path",
        "flops_profiler.enabled",
        "comms_logger.enabled",
        "wall_clock_breakdown",
        "steps_per_print",
        "scheduler.type, scheduler.params.warmup_num_steps",
    ):
        assert any(key in note and "not used in this trial: " in note for note in file_notes(spec)), key
    assert "zero_optimization.stage3_prefetch_bucket_size: not read by this trial: DeepSpeed reads it only" in said
    assert "activation_checkpointing.partition_activations: not read by this trial: only deepspeed.checkpoin" in said
    assert "aio.queue_depth: not read by this trial: DeepSpeed reads it only at ZeRO stage 3 where states are" in said
    assert all(note.startswith(f"{tmp_path / 'my.json'}: ") and "\n" not in note for note in file_notes(spec))


def test_what_a_file_leaves_at_its_default_switches_off_or_says_of_the_trial_is_not_spoken_of(tmp_path: Path) -> None:
    said = "\n".join(file_notes(of_file(tmp_path, ORDINARY)))
    silent = ("csv_monitor", "dump_state", "cpu_checkpointing", "overlap_comm", "gradient_clipping", "bf16.enabled")
    assert [key for key in silent if key in said] == []
    assert file_notes(of_file(tmp_path, {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}})) == []
    assert file_notes(trial()) == []
    assert file_notes(trial(ds_config_file=str(tmp_path / "gone.json"))) == []
    assert file_notes(of_file(tmp_path, {"changed_since": True, "dump_state": True})) == []


def test_what_deepspeed_would_act_on_beside_the_training_is_not_in_the_trial_s_config(tmp_path: Path) -> None:
    config = build_ds_config(of_file(tmp_path, ORDINARY))
    left_out = {"tensorboard", "wandb", "csv_monitor", "flops_profiler", "comms_logger", "wall_clock_breakdown"}
    assert not (left_out | {"steps_per_print", "dump_state", "scheduler"}) & set(config)
    assert config["zero_optimization"]["stage3_prefetch_bucket_size"] == 1e6  # it does nothing, and is the user's
    assert config["aio"] == {"queue_depth": 16}


@pytest.mark.parametrize(
    ("section", "fields", "told"),
    [
        ({"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}, {}, "torch_autocast.enabled: not supported"),
        ({"sequence_parallel_size": 2}, {}, "sequence_parallel_size: not supported here: Ulysses"),
        ({"expert_parallel": {"enabled": True, "autoep_size": 2}}, {}, "AutoEP replaces the experts of a mixture"),
        ({"zero_optimization": {"stage": 2, "zenflow": {}}}, {}, "zero_optimization.zenflow: not supported here"),
        ({"zero_optimization": {"stage": 2, "zenflow": {"topk_ratio": 0.1}}}, {}, "ZenFlow updates most weights"),
        ({"hybrid_engine": {"enabled": True}}, {}, "hybrid_engine.enabled: not supported here"),
        ({"compile": {"deepcompile": True}}, {"compile": "model"}, "compile.deepcompile: not supported here"),
        ({"communication_data_type": "float16"}, {}, "'float16' is not known to DeepSpeed; choices: fp16, bf16, fp32"),
        ({"gradient_predivide_factor": 2.0}, {}, "reduce_scatter false"),
        (
            {"optimizer": {"type": "AdamW", "params": {"torch_adam": True, "amsgrad": True}}},
            {},
            "optimizer has none of it",
        ),
        ({"zero_optimization": {"stage": 2, "compute_grad_norm": False}}, {}, "and would fail here"),
        ({"gradient_allreduce_op": "sum"}, {}, "gradient_allreduce_op: not supported here: the reference sums"),
        (
            {"optimizer": {"type": "AdamW", "params": {"torch_adam": True, "warmup": 9}}},
            {},
            "no optimizer that a trial",
        ),
    ],
)
def test_a_file_with_which_deepspeed_would_fail_or_train_something_else_is_refused(
    tmp_path: Path, section: dict[str, Any], fields: dict[str, Any], told: str
) -> None:
    plain = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}
    assert ds_config_refusal(of_file(tmp_path, plain, **fields)) is None
    reason = known(ds_config_refusal(of_file(tmp_path, plain | section, **fields)))
    assert reason.startswith(f"{tmp_path / 'my.json'}: ")
    assert told in reason
    assert "\n" not in reason


def test_sections_that_a_file_switches_off_are_not_refused(tmp_path: Path) -> None:
    off = {"torch_autocast": {"enabled": False, "dtype": "bfloat16"}, "compile": {"deepcompile": True}}
    zero = {"stage": 2, "zenflow": None}
    adamw = {"type": "AdamW", "params": {"torch_adam": True, "amsgrad": False, "maximize": False}}
    off |= {"optimizer": adamw, "gradient_allreduce_op": "mean"}
    spec = of_file(tmp_path, {"bf16": {"enabled": True}, "zero_optimization": zero} | off)
    assert ds_config_refusal(spec) is None
    [note] = file_notes(spec)
    assert note.endswith("compile.deepcompile: not read by this trial: DeepSpeed reads it only with compile model")


def test_a_key_of_one_stage_stays_with_the_trials_of_that_stage() -> None:
    prefetch, bucket = "zero_optimization.stage3_prefetch_bucket_size", "zero_optimization.reduce_bucket_size"
    asked = [trial(name, ds_config={prefetch: 0, bucket: 1000}) for name in ("zero0", "zero1", "zero3")]
    kept = drop_unread_keys(asked)
    assert [list(one.ds_config) for one in kept] == [[], [bucket], [prefetch, bucket]]
    assert all(ds_config_refusal(one) is None for one in kept)


def test_a_key_that_no_trial_of_a_sweep_reads_stays_and_is_refused() -> None:
    prefetch = "zero_optimization.stage3_prefetch_bucket_size"
    [one] = drop_unread_keys([trial("zero1", ds_config={prefetch: 0})])
    assert one.ds_config == {prefetch: 0}
    assert ds_config_refusal(one) == (
        f"ds_config: {prefetch}: DeepSpeed reads it only at ZeRO stage 3 with "
        "zero_optimization.stage3_allgather_sequential false (runtime/engine.py, _configure_zero_optimizer); "
        "here it would do nothing"
    )


def test_a_value_with_which_deepspeed_would_fail_is_refused_before_it_does() -> None:
    swapped = {"offload_optimizer": "nvme", "optimizer": "cpu_adam", "nvme_path": "/nvme"}
    key = "zero_optimization.offload_optimizer.buffer_count"
    assert ds_config_refusal(trial("zero3", ds_config={key: 4}, **swapped)) is None
    assert ds_config_refusal(trial("zero3", ds_config={key: 3}, **swapped)) == (
        f"ds_config: {key}: 3 must be at least 4, the number of tensors in Adam's step"
    )


def test_trials_without_settings_are_given_back_as_they_are() -> None:
    asked = [trial("zero0"), trial("zero3", ds_config={"zero_optimization.sub_group_size": 7})]
    assert all(one is other for one, other in zip(drop_unread_keys(asked), asked, strict=True))


def test_the_reduce_bucket_is_read_at_stage_1_but_where_bf16_optimizer_runs() -> None:
    keys = {"data_types.grad_accum_dtype": "fp32", "zero_optimization.reduce_bucket_size": 5}
    assert ds_config_refusal(trial("zero1", precision="fp32", ds_config=keys)) is None
    reason = known(ds_config_refusal(trial("zero1", precision="bf16", ds_config=keys)))
    assert "reduce_bucket_size: DeepSpeed reads it only at ZeRO stage 1 or 2 or 3 where BF16_Optimizer is not" in reason


@pytest.mark.parametrize(("precision", "same"), [("bf16", "bfloat16"), ("fp16", "half"), ("fp32", "fp32")])
def test_a_file_at_stage_0_may_name_its_own_precision_for_gradients_and_no_other(
    tmp_path: Path, precision: str, same: str
) -> None:
    sections = {"zero_optimization": {"stage": 0}} | ({precision: {"enabled": True}} if precision != "fp32" else {})
    other = "fp32" if precision != "fp32" else "bf16"

    def asked(accumulates_in: str) -> TrialSpec:
        config = sections | {"data_types": {"grad_accum_dtype": accumulates_in}}
        folder = tmp_path / accumulates_in
        folder.mkdir()
        return of_file(folder, config, "zero0", precision=precision)

    assert ds_config_refusal(asked(same)) is None
    reason = known(ds_config_refusal(asked(other)))
    assert (
        "data_types.grad_accum_dtype: DeepSpeed reads it only at ZeRO stage 1 or 2 or 3, or at ZeRO stage 0" in reason
    )


def test_what_lies_below_a_section_has_its_fact_however_deep() -> None:
    for section in (entry for entry in key_facts() if entry.endswith(".*")):
        assert fact_of(section.replace("*", "other")) is fact_of(section.replace("*", "a.b.c")) is key_facts()[section]
    with pytest.raises(KeyError, match=r"nobody\.knows"):
        fact_of("nobody.knows")


PLAIN = {
    "stage": 2,
    "pipeline": False,
    "offload_optimizer": "none",
    "offload_param": "none",
    "swaps": False,
    "optimizer": "adamw",
    "precision": "bf16",
    "compile": "none",
    "checkpoint": False,
    "autotp": False,
    "gradient_clipping": 1.0,
    "bf16_optimizer": False,
}
SWAPPED = {"offload_optimizer": "nvme", "offload_param": "cpu", "nvme_path": "/nvme"}


@pytest.mark.parametrize(
    ("strategy", "fields", "expected"),
    [
        ("zero2", {}, {}),
        ("zero0", {"precision": "fp32", "optimizer": "sgd"}, {"stage": 0, "precision": "fp32", "optimizer": "sgd"}),
        ("zero3", SWAPPED, {"stage": 3, "offload_optimizer": "nvme", "offload_param": "cpu", "swaps": True}),
        ("zero3", {"offload_param": "nvme"}, {"stage": 3, "offload_param": "nvme", "swaps": True}),
        ("zero2", {"checkpoint": {"every_steps": 2}}, {"checkpoint": True}),
        ("zero1", {"ds_config": {"tensor_parallel.autotp_size": 2}}, {"stage": 1, "autotp": True}),
        ("pipeline", {"pipeline_schedule": "deepspeed"}, {"stage": 0, "pipeline": True, "bf16_optimizer": True}),
    ],
    ids=str,
)
def test_the_facts_that_conditions_name_are_those_of_the_trial(
    strategy: str, fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    look = look_of(TrialSpec(model=LLAMA, strategy=strategy, gpus_per_node=2, **fields), {})
    assert {name: look(name) for name in PLAIN} == PLAIN | expected


def test_a_key_has_the_value_that_is_given_else_deepspeeds_default() -> None:
    stage1 = TrialSpec(model=LLAMA, strategy="zero1")
    bucket = "zero_optimization.reduce_bucket_size"
    assert look_of(stage1, {bucket: 7})(bucket) == 7
    assert look_of(stage1, {bucket: "auto"})(bucket) == look_of(stage1, {})(bucket) == 500_000_000
    assert look_of(stage1, {"its.own": "auto"})("its.own") == "auto"
    assert look_of(stage1, {"data_types.grad_accum_dtype": "fp32"})("bf16_optimizer")


def test_any_of_the_conditions_is_enough_and_all_of_one_must_hold() -> None:
    look = look_of(TrialSpec(model=LLAMA, strategy="zero1"), {})
    assert holds((), look)
    assert holds(({"stage": (3,)}, {"stage": (1, 2), "pipeline": (False,)}), look)
    assert not holds(({"stage": (1, 2), "pipeline": (True,)},), look)


def test_conditions_are_said_in_words() -> None:
    said = words(({"stage": (1, 2), "autotp": (True,)}, {"swaps": (False,)}, {"fp16.enabled": (True,)}))
    assert said == ("at ZeRO stage 1 or 2 with AutoTP, or where nothing is swapped to NVMe, or with fp16.enabled true")
