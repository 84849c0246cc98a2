import json
from pathlib import Path
from typing import Any

import pytest

from tests.tools.refusals import one_line
from zerobench.common.errors import UserError
from zerobench.config.deepspeed import build_ds_config, check_ds_config
from zerobench.config.deepspeed.build import refuse_conflicts, replaces_linear
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import HyperparameterSpec, TrialSpec
from zerobench.records.folder import RunFolder
from zerobench.records.swap_folder import set_swap_folder, swap_folder

DATA = Path(__file__).parents[2] / "data" / "ds_config"
LLAMA = ModelSpec(
    name="llama-tiny", hf_config={"model_type": "llama", "hidden_size": 256, "vocab_size": 8000, "num_hidden_layers": 2}
)
LLAMA_70B = ModelSpec(name="llama-70b", hf_config={"model_type": "llama", "hidden_size": 8192, "vocab_size": 128256})


def trial(strategy: str = "zero2", **fields: Any) -> TrialSpec:
    return TrialSpec(**{"model": LLAMA, "strategy": strategy, "gpus_per_node": 2} | fields)


GOLDEN = {
    "zero0_fp32_sgd": trial(
        "zero0", precision="fp32", optimizer="sgd", hyperparameters=HyperparameterSpec(gradient_clipping=0.0)
    ),
    "zero1_fp16_fused_adamw": trial("zero1", precision="fp16", optimizer="fused_adamw", gpus_per_node=8, num_nodes=4),
    "zero2_bf16_adamw": trial("zero2", micro_batch_size=4, gradient_accumulation_steps=8),
    "zero2_sgd_offload_cpu": trial("zero2", precision="fp32", optimizer="sgd", offload_optimizer="cpu"),
    "zero3_overrides": trial(
        "zero3",
        ds_config={
            "zero_optimization.reduce_bucket_size": 1_000_000,
            "zero_optimization.stage3_prefetch_bucket_size": 0,
            "optimizer.params.lr": 0.001,
            "aio.queue_depth": 32,
        },
    ),
    "zero3_cpu_adam_offload_cpu": trial(
        "zero3",
        optimizer="cpu_adam",
        offload_optimizer="cpu",
        offload_param="cpu",
        ds_config={"zero_optimization.offload_param.pin_memory": False},
    ),
    "zero3_adamw_offload_nvme": trial("zero3", offload_optimizer="nvme", nvme_path="/mnt/nvme0/"),
    "zero3_llama_70b_nvme": trial(
        "zero3",
        model=LLAMA_70B,
        optimizer="cpu_adam",
        offload_optimizer="nvme",
        offload_param="nvme",
        nvme_path="/mnt/nvme0",
    ),
}
"""By name of the file under tests/data/ds_config."""


@pytest.mark.parametrize(
    ("asked", "replaced"),
    [
        (trial("zero3"), True),
        (trial("zero3", ds_config={"zero_optimization.memory_efficient_linear": False}), False),
        (trial("zero3", ds_config_file="/nowhere.json"), True),
        (trial("zero2"), False),
        (trial("ddp"), False),
    ],
)
def test_deepspeeds_linear_layer_is_told_by_the_trials_keys_and_as_by_default_without_its_file(
    asked: TrialSpec, *, replaced: bool
) -> None:
    assert replaces_linear(asked) is replaced


@pytest.mark.parametrize("name", GOLDEN)
def test_a_trial_s_config_is_the_golden_file(name: str) -> None:
    spec = GOLDEN[name]
    assert build_ds_config(spec) == json.loads((DATA / f"{name}.json").read_text())


def test_every_golden_file_belongs_to_a_trial() -> None:
    assert {path.stem for path in DATA.glob("*.json")} == set(GOLDEN)


@pytest.mark.parametrize("name", GOLDEN)
def test_every_built_config_has_only_keys_that_deepspeed_knows(name: str) -> None:
    check_ds_config(build_ds_config(GOLDEN[name]), name)


def test_building_twice_gives_equal_configs_that_share_nothing() -> None:
    first, second = build_ds_config(trial()), build_ds_config(trial())
    first["zero_optimization"]["stage"] = 7
    assert second == build_ds_config(trial())


def test_repeats_of_a_trial_swap_into_different_folders() -> None:
    run = RunFolder(Path("/reports/a_run"))
    repeats = [trial("zero3", nvme_path="/nvme", repeat=repeat) for repeat in range(3)]
    assert len({swap_folder(one, run.trial(one.trial_id)) for one in repeats}) == 3
    assert swap_folder(trial(), run.trial("some")) is None


def test_a_trial_s_config_swaps_into_its_own_folder_and_stays_as_it_is_otherwise() -> None:
    spec = GOLDEN["zero3_llama_70b_nvme"]
    folder = RunFolder(Path("/reports/a_run")).trial(spec.trial_id)
    config = build_ds_config(spec)
    own = set_swap_folder(config, spec, folder)
    named = {own["zero_optimization"][where].pop("nvme_path") for where in ("offload_optimizer", "offload_param")}
    assert named == {swap_folder(spec, folder)}
    assert all(
        config["zero_optimization"][where].pop("nvme_path") == "/mnt/nvme0"
        for where in ("offload_optimizer", "offload_param")
    )
    assert own == config


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"strategy": "single"}, "strategy: 'single' has no DeepSpeed configuration"),
        ({"strategy": "zero9"}, "strategy: 'zero9' is not known"),
        (
            {"optimizer": "cpu_adam"},
            "cpu_adam runs on the host, but offload_optimizer is none; choices: adamw, fused_adamw",
        ),
        (
            {"optimizer": "fused_adamw", "offload_optimizer": "cpu"},
            "fused_adamw runs on the device, but offload_optimizer",
        ),
        ({"strategy": "zero3", "offload_optimizer": "nvme"}, "nvme_path: missing, but offload_optimizer is nvme"),
        (
            {"ds_config": {"zero_optimization.stage": 3}},
            "zero_optimization.stage is 3, but the trial's zero_stage is 2",
        ),
        ({"ds_config": {"fp16.enabled": True}}, "is 'fp16 and bf16', but the trial's precision is 'bf16'"),
        (
            {"ds_config": {"optimizer.params.torch_adam": False}},
            "is 'fused_adamw', but the trial's optimizer is 'adamw'",
        ),
        ({"ds_config": {"optimizer.type": "Lion"}}, "optimizer.type: 'Lion' has no counterpart here; choices: AdamW"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_line_that_says_why(fields: dict[str, Any], message: str) -> None:
    with one_line(message):
        build_ds_config(trial(**fields))


def test_zeropp_is_written_where_it_is_asked_for_and_nowhere_else() -> None:
    asked = {"hpz_partition_size": 2, "quantized_weights": True, "quantized_gradients": True}
    keys = ("zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_gradients")
    section = build_ds_config(trial("zero3", **asked))["zero_optimization"]
    assert [section[key] for key in keys] == [2, True, True]
    assert not set(keys) & set(build_ds_config(trial("zero3"))["zero_optimization"])


def test_a_hand_written_zeropp_key_that_the_trial_does_not_have_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(
        json.dumps({"bf16": {"enabled": True}, "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 2}})
    )
    with pytest.raises(UserError, match="zero_hpz_partition_size is 2, but the trial's hpz_partition_size is None"):
        build_ds_config(trial("zero3", ds_config_file=str(file)))
    agreed = build_ds_config(trial("zero3", ds_config_file=str(file), hpz_partition_size=2))
    assert agreed["zero_optimization"]["zero_hpz_partition_size"] == 2


def batched_trial(**fields: Any) -> TrialSpec:
    usual = {"model": resolve_model("llama-20m"), "strategy": "zero2", "gpus_per_node": 4, "micro_batch_size": 3}
    return TrialSpec.model_validate({**usual, "gradient_accumulation_steps": 2, **fields})


CUT = {"ds_config": {"tensor_parallel.autotp_size": 2}}


LION = {"optimizer": "lion"}
"""DeepSpeed makes none of it and is handed one."""


@pytest.mark.parametrize(
    "fields", [{}, CUT, LION, {"strategy": "zero3", "hpz_partition_size": 2}, {"precision": "fp32"}]
)
def test_a_trials_own_configuration_agrees_with_it(fields: dict[str, Any]) -> None:
    refuse_conflicts(build_ds_config(batched_trial(**fields)), batched_trial(**fields), "here")


@pytest.mark.parametrize(
    ("fields", "changed", "said"),
    [
        ({}, {"train_batch_size": 12}, "train_batch_size is 12, but the trial's global_batch_size is 24"),
        (CUT, {"train_batch_size": 24}, "train_batch_size is 24, but the trial's global_batch_size is 48"),
        ({}, {"train_micro_batch_size_per_gpu": 2}, "micro_batch_size is 3"),
        ({}, {"gradient_accumulation_steps": 4}, "gradient_accumulation_steps is 2"),
        (CUT, {"gradient_accumulation_steps": 2}, "the trial's gradient_accumulation_steps is 4"),
        ({}, {"tensor_parallel": {"autotp_size": 2}}, "tensor_parallel.autotp_size is 2, but the trial's"),
        (CUT, {"tensor_parallel": {"autotp_size": 4}}, "autotp_size is 4, but the trial's"),
        ({}, {"gradient_clipping": 0.5}, "gradient_clipping is 0.5"),
        (LION, {"optimizer": {"type": "SGD"}}, "the optimizer it makes is 'sgd', but the trial's optimizer is 'lion'"),
        ({}, {"memory_breakdown": True}, "memory_breakdown: true resets the peaks"),
    ],
)
def test_each_fact_that_differs_is_named_on_both_sides(
    fields: dict[str, Any], changed: dict[str, Any], said: str
) -> None:
    asked = batched_trial(**fields)
    with one_line(start="here: ", match=said):
        refuse_conflicts({**build_ds_config(asked), **changed}, asked, "here")


@pytest.mark.parametrize("nothing", [0, 1, None])
def test_a_tensor_parallel_size_of_nothing_is_that_of_one(nothing: int | None) -> None:
    refuse_conflicts(
        {**build_ds_config(batched_trial()), "tensor_parallel": {"autotp_size": nothing}}, batched_trial(), "here"
    )
