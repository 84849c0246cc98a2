"""The configuration that a plan writes is one that DeepSpeed and transformers' Trainer take as it stands."""

import json
from ast import literal_eval
from pathlib import Path
from typing import Any

import pytest

from zerobench.config.deepspeed import build_ds_config
from zerobench.config.deepspeed.written import training_arguments, written_config
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.optimizers import deepspeeds_adamw
from zerobench.config.trial.trial import FINE_TUNING, Offload, Precision, TrialSpec

CASES = [(0, Offload.NONE), (1, Offload.CPU), (2, Offload.NONE), (3, Offload.CPU)]


def spec(stage: int, offload: Offload, **fields: Any) -> TrialSpec:
    return TrialSpec(
        model=resolve_model("llama-10m"),
        strategy=f"zero{stage}",
        offload_optimizer=offload,
        optimizer=deepspeeds_adamw(offloaded=offload is not Offload.NONE),
        micro_batch_size=2,
        gradient_accumulation_steps=4,
        hyperparameters=FINE_TUNING,
        **fields,
    )


def arguments(trial: TrialSpec, config: Path, folder: Path) -> Any:
    from transformers import TrainingArguments

    pairs = (pair.split("=") for pair in training_arguments(trial).split(", "))
    told = {name: literal_eval(value) for name, value in pairs}
    return TrainingArguments(output_dir=str(folder), deepspeed=str(config), use_cpu=True, **told)


@pytest.mark.parametrize(("stage", "offload"), CASES)
def test_trainer_fills_in_what_is_auto_and_the_whole_is_what_was_planned(
    tmp_path: Path, stage: int, offload: Offload
) -> None:
    trial = spec(stage, offload)
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(written_config(trial, for_trainer=True)))
    told = arguments(trial, path, tmp_path)
    told.hf_deepspeed_config.trainer_config_finalize(told, None, num_training_steps=10)
    filled = told.hf_deepspeed_config.config
    assert "auto" not in json.dumps(filled)
    planned = written_config(trial)
    assert {key: filled[key] for key in planned} == planned


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP16])
@pytest.mark.parametrize(("stage", "offload"), CASES)
def test_deepspeed_reads_it_as_the_configuration_that_was_predicted(
    stage: int, offload: Offload, precision: Precision
) -> None:
    from deepspeed.runtime.config import DeepSpeedConfig

    trial = spec(stage, offload, precision=precision)
    read, built = (DeepSpeedConfig(dict(one)) for one in (written_config(trial), build_ds_config(trial)))
    assert read.train_micro_batch_size_per_gpu == 2
    assert read.gradient_accumulation_steps == 4
    of_saving = "gather_16bit_weights_on_model_save"
    assert read.zero_config.model_dump(exclude={of_saving}) == built.zero_config.model_dump(exclude={of_saving})
    assert getattr(read.zero_config, of_saving) is (stage == 3)
    assert read.steps_per_print is None


def test_a_planned_configuration_has_no_keys_of_a_benchmark_and_says_what_the_trainer_fills_in_as_auto() -> None:
    trial = spec(3, Offload.NONE, precision=Precision.FP16)
    built, planned, for_trainer = build_ds_config(trial), written_config(trial), written_config(trial, for_trainer=True)
    assert set(built) - set(planned) == {"steps_per_print", "wall_clock_breakdown", "memory_breakdown"}
    saves = {"stage3_gather_16bit_weights_on_model_save": True}
    assert planned["zero_optimization"] == built["zero_optimization"] | saves
    auto = {key: value for key, value in for_trainer.items() if value != planned[key]}
    assert auto == {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "fp16": planned["fp16"] | {"enabled": "auto"},
        "optimizer": planned["optimizer"]
        | {"params": planned["optimizer"]["params"] | dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")},
    }


def test_below_stage_3_nothing_is_gathered_to_be_saved_and_a_file_of_the_users_own_stays_as_it_is(
    tmp_path: Path,
) -> None:
    of_saving = "stage3_gather_16bit_weights_on_model_save"
    assert of_saving not in written_config(spec(2, Offload.NONE))["zero_optimization"]
    file = tmp_path / "own.json"
    file.write_text(json.dumps({"bf16": {"enabled": True}, "zero_optimization": {"stage": 3}, "steps_per_print": 5}))
    own = spec(3, Offload.NONE, ds_config_file=str(file))
    assert written_config(own, for_trainer=True) == build_ds_config(own)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, ", bf16=True"),
        ({"precision": Precision.FP32}, ""),
        ({"activation_checkpointing": "every-2"}, ", bf16=True"),
        ({"precision": Precision.FP16, "activation_checkpointing": True}, ", fp16=True, gradient_checkpointing=True"),
    ],
    ids=str,
)
def test_the_trainers_arguments_are_the_trials(fields: dict[str, Any], said: str) -> None:
    assert training_arguments(spec(2, Offload.NONE, **fields)) == (
        "per_device_train_batch_size=2, gradient_accumulation_steps=4, learning_rate=2e-05, weight_decay=0.0, "
        f"adam_beta2=0.999, max_grad_norm=1.0{said}"
    )
