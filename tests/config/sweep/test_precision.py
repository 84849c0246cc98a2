"""`precision: auto` is what ranks are fast at, and the same trial as that precision asked for by name."""

from pathlib import Path

import pytest

from zerobench.common.errors import UserError
from zerobench.config.derived.machine import Accelerator, Machine
from zerobench.config.sweep.expand import expand
from zerobench.config.sweep.precision import (
    SLOW,
    auto_precision,
    auto_precision_sentence,
    needs_bf16_speed,
    precision_notes,
)
from zerobench.config.sweep.sweep import Sweep, load_sweep
from zerobench.config.trial.trial import Evidence, Precision

FAST = Machine(accelerator=Accelerator.CPU, cpu_cores=2, bf16_slowdown=0.3)
SLOW_AT_IT = FAST.model_copy(update={"bf16_slowdown": 62.0})
UNTRIED = FAST.model_copy(update={"bf16_slowdown": None})
GPUS = Machine(accelerator=Accelerator.CUDA, num_gpus=8, gpu_names=("NVIDIA H200",) * 8, bf16_slowdown=None)
OLD_GPUS = GPUS.model_copy(update={"gpu_names": ("Tesla V100-SXM2-16GB",) * 8, "supports_bf16": False})


def sweep(folder: Path, precision: str, more: str = "") -> Sweep:
    path = folder / f"{precision}.yaml"
    path.write_text(f"axes: {{model: llama-10m, strategy: [single, zero2], precision: {precision}{more}}}")
    return load_sweep(path)


@pytest.mark.parametrize(
    ("machine", "precision"),
    [
        (FAST, Precision.BF16),
        (SLOW_AT_IT, Precision.FP32),
        (FAST.model_copy(update={"bf16_slowdown": SLOW}), Precision.FP32),
        (FAST.model_copy(update={"bf16_slowdown": 0.99 * SLOW}), Precision.BF16),
        (GPUS, Precision.BF16),
        (OLD_GPUS, Precision.FP16),
    ],
)
def test_auto_is_the_smallest_precision_that_ranks_are_fast_at(machine, precision):
    assert auto_precision(machine) is precision


def test_an_auto_trial_is_the_trial_of_the_precision_it_came_to_and_says_that_it_was_auto(tmp_path):
    auto = [item.trial for item in expand(sweep(tmp_path, "auto"), SLOW_AT_IT)]
    named = [item.trial for item in expand(sweep(tmp_path, "fp32"), SLOW_AT_IT)]
    assert [trial.trial_id for trial in auto] == [trial.trial_id for trial in named]
    assert {trial.precision_is_auto for trial in auto} == {True}
    assert {trial.precision_is_auto for trial in named} == {False}


def test_auto_beside_what_it_comes_to_is_one_trial(tmp_path):
    both = expand(load_sweep(sweep_of_both(tmp_path)), FAST)
    assert [item.trial.precision for item in both] == [Precision.BF16]


def sweep_of_both(folder: Path) -> Path:
    path = folder / "both.yaml"
    path.write_text("axes: {model: llama-10m, strategy: zero2, precision: [auto, bf16]}")
    return path


def test_a_processor_that_nobody_tried_is_not_taken_for_a_fast_one(tmp_path):
    assert {item.trial.precision for item in expand(sweep(tmp_path, "auto"), UNTRIED)} == {Precision.FP32}
    assert auto_precision_sentence(UNTRIED) == "precision: fp32 (auto; this processor's bf16 speed was not measured)"


def test_a_processor_is_tried_only_where_auto_is_asked_of_it(tmp_path):
    assert needs_bf16_speed(sweep(tmp_path, "auto"), UNTRIED)
    assert not needs_bf16_speed(sweep(tmp_path, "auto"), FAST)
    assert not needs_bf16_speed(sweep(tmp_path, "bf16"), UNTRIED)
    assert not needs_bf16_speed(sweep(tmp_path, "auto"), GPUS)
    assert needs_bf16_speed(sweep(tmp_path, "auto", ", evidence: simulated, gpu: none"), GPUS)


def test_a_prediction_of_gpus_made_on_a_slow_processor_is_in_bf16(tmp_path):
    planned = expand(sweep(tmp_path, "auto", ", evidence: simulated, gpu: h200"), SLOW_AT_IT)
    assert {item.trial.precision for item in planned} == {Precision.BF16}


def test_the_sentence_says_what_auto_came_to_and_why():
    said = "precision: fp32 (auto; bf16 takes 62 x as long as fp32 on this processor)"
    assert auto_precision_sentence(SLOW_AT_IT) == said


def test_what_auto_came_to_is_said_of_trials_on_cpu_ranks_that_left_it_open(tmp_path):
    auto = expand(sweep(tmp_path, "auto"), SLOW_AT_IT)[0].trial
    predicted = {"evidence": Evidence.SIMULATED, "prediction": auto.prediction.model_copy(update={"gpu": "H200 SXM"})}
    of_a_gpu = auto.model_copy(update=predicted)
    of_cpu_ranks = auto.model_copy(update={"evidence": Evidence.SIMULATED})
    named = auto.model_copy(update={"precision_is_auto": False})
    assert (
        precision_notes([named, of_a_gpu, auto], SLOW_AT_IT)
        == precision_notes([of_cpu_ranks], SLOW_AT_IT)
        == [auto_precision_sentence(SLOW_AT_IT)]
    )
    assert precision_notes([named, of_a_gpu], SLOW_AT_IT) == []
    assert precision_notes([auto], SLOW_AT_IT.model_copy(update={"accelerator": Accelerator.CUDA})) == []


def test_a_misspelt_precision_is_told_auto_too(tmp_path):
    with pytest.raises(UserError, match=r"precision: 'bf61' .*choices: fp32, bf16, fp16, auto"):
        sweep(tmp_path, "bf61")
