"""Whether a trial fits, by how much, and what counts."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from benchmarks.prediction.simulated import gpu_trial
from tests.report.predicted_trial import asked, reserved, row, trial
from tests.report.sample_run import GIB
from tests.tools.known import known
from zerobench.app.search.formula import formula_trial
from zerobench.common.vocabulary import Category, Phase, Status, StepKind
from zerobench.config.trial.trial import Evidence
from zerobench.records.records import ContextMemory, Failure
from zerobench.records.store import load_run
from zerobench.records.trials import ended_trials
from zerobench.report.explain.memory import peak_topic
from zerobench.report.figures.capacity import (
    cast_bytes,
    device_need,
    device_needs,
    host_bytes_per_node,
    total_needs,
    when_needed,
)

FIRST_STEP, STEADY = (StepKind.FIRST, Phase.STEP), (StepKind.STEADY, Phase.BACKWARD)
DEVICE = {
    FIRST_STEP: {Category.PARAMETERS: 10 * GIB},
    STEADY: {Category.PARAMETERS: 10 * GIB, Category.ACTIVATIONS: 4 * GIB},
}
CONTEXT = ContextMemory(before_bytes=None, context_bytes=GIB, collectives_bytes=2 * GIB)
ALLOCATOR = [reserved(*FIRST_STEP, 11 * GIB), reserved(*STEADY, 15 * GIB)]


def test_a_device_needs_what_is_reserved_and_what_lies_outside_torch() -> None:
    sample = trial(asked(), DEVICE, allocator=ALLOCATOR, context=CONTEXT)
    need = known(device_need(sample))
    assert (need.tensors_bytes, need.slack_bytes) == (14 * GIB, GIB)
    fitting = row(sample, 20 * GIB)
    assert fitting.fits
    assert (fitting.device.needed_bytes, fitting.device.room) == (18 * GIB, 1 - 18 / 20)


def test_kernels_that_a_step_loads_and_communicators_of_the_engine_are_needed_too() -> None:
    """The driver tells more outside torch than the context had when it was made."""
    steady = reserved(*STEADY, 15 * GIB)
    steady = steady.model_copy(update={"reserved_bytes": 15 * GIB, "nvml_process_bytes": 20 * GIB})
    need = known(device_need(trial(asked(), DEVICE, allocator=[ALLOCATOR[0], steady], context=CONTEXT)))
    assert (need.context_bytes, need.collectives_bytes, need.total_bytes) == (3 * GIB, 2 * GIB, 20 * GIB)


def test_free_segments_that_start_up_left_are_no_need() -> None:
    """The allocator gives them back before it fails; a block that shares its segment with another stays."""
    left = [reserved(*FIRST_STEP, 19 * GIB, 11 * GIB), reserved(*STEADY, 19 * GIB, 15 * GIB)]
    need = known(device_need(trial(asked(), DEVICE, allocator=left, context=CONTEXT)))
    assert (need.tensors_bytes, need.slack_bytes, need.total_bytes) == (14 * GIB, GIB, 18 * GIB)


def test_a_device_needs_no_less_than_was_in_use_and_asked_for_when_it_refused() -> None:
    """Where there is room from the beginning, less may do."""
    sample = trial(asked(), DEVICE, allocator=ALLOCATOR, context=CONTEXT)
    for needed_bytes in (17 * GIB, 25 * GIB):
        told = Failure(message="it needs more", bytes_needed=needed_bytes)
        need = known(device_need(sample.with_ranks(failure=told)))
        assert need.total_bytes == max(needed_bytes, 18 * GIB)
        assert need.tensors_bytes == 14 * GIB


def test_one_byte_too_many_does_not_fit() -> None:
    sample = trial(asked(), DEVICE)
    assert row(sample, 14 * GIB).fits
    assert not row(sample, 14 * GIB - 1).fits


def test_a_node_needs_the_host_memory_of_all_of_its_ranks() -> None:
    host = {STEADY: {Category.MASTER_WEIGHTS: 3 * GIB}}
    sample = trial(asked(offload_optimizer="cpu", optimizer="cpu_adam"), DEVICE, host)
    assert host_bytes_per_node(sample) == 24 * GIB
    assert not row(sample, 80 * GIB, 20 * GIB).fits
    assert row(sample, 80 * GIB).fits


@pytest.mark.parametrize(
    ("axes", "bytes_per_element"),
    [
        ({"offload_optimizer": "cpu"}, 2),
        ({"offload_optimizer": "nvme", "nvme_path": "/nvme"}, 2),
        ({"offload_optimizer": "cpu", "offload_param": "cpu"}, 0),
        ({"offload_optimizer": "cpu", "precision": "fp32"}, 0),
        ({"offload_optimizer": "cpu", "stage": 2}, 0),
        ({"offload_param": "cpu", "optimizer": "fused_adamw"}, 4),
        ({}, 0),
    ],
)
def test_weights_of_stage_3_that_the_host_casts_are_as_many_as_an_h200s_host_held(
    axes: dict[str, Any], bytes_per_element: int
) -> None:
    """The ledger of a GPT-2 of 350M with states on a drive had 709,646,336 bytes of torch's own in its update."""
    asked = {"optimizer": "cpu_adam" if "offload_optimizer" in axes else "adamw", "stage": 3} | axes
    for ranks in (1, 8):
        spec = gpu_trial("gpt2-350m", world_size=ranks, **asked, evidence=Evidence.FORMULA)
        assert cast_bytes(formula_trial(spec)) == bytes_per_element * 354_823_168 // ranks


def test_the_process_that_predicts_is_no_memory_of_the_trial() -> None:
    host = {STEADY: {Category.MASTER_WEIGHTS: GIB, Category.REST_OF_PROCESS: 5 * GIB}}
    assert host_bytes_per_node(trial(asked(), DEVICE, host)) == 8 * GIB
    assert host_bytes_per_node(trial(asked(evidence="measured"), DEVICE, host)) == 48 * GIB


def test_a_trial_that_nobody_watched_does_not_fit_nor_one_that_was_refused_within_the_capacity() -> None:
    assert device_need(trial(asked())) is None
    assert not row(trial(asked()), 80 * GIB).fits
    whole = trial(asked(), DEVICE)
    assert not row(whole.with_record(status=Status.OUT_OF_DEVICE_MEMORY), 80 * GIB).fits


def test_the_rank_that_needs_most_decides() -> None:
    small, large = trial(asked(), DEVICE), trial(asked(), DEVICE, context=CONTEXT)
    both = dataclasses.replace(small, ranks=[*small.ranks, *large.ranks])
    need = known(device_need(both))
    assert need.total_bytes == 17 * GIB


def test_what_start_up_needs_and_what_steps_need_are_told_apart() -> None:
    """Start-up may reserve more for fewer tensors: its parts are its own, not the larger ones of both."""
    allocator = [reserved(*FIRST_STEP, 21 * GIB), reserved(*STEADY, 15 * GIB)]
    needs = device_needs(trial(asked(), DEVICE, allocator=allocator, context=CONTEXT))
    assert {step: (need.tensors_bytes, need.slack_bytes, need.total_bytes) for step, need in needs.items()} == {
        StepKind.FIRST: (10 * GIB, 11 * GIB, 24 * GIB),
        StepKind.STEADY: (14 * GIB, GIB, 18 * GIB),
    }
    assert known(device_need(trial(asked(), DEVICE, allocator=allocator, context=CONTEXT))).step is StepKind.FIRST
    assert when_needed(total_needs(needs)) == "at start-up, steps 18.00 GiB"
    assert when_needed({StepKind.STEADY: GIB}) == "in steps"
    assert when_needed({}) == ""


@pytest.mark.parametrize(("step_index", "step"), [(0, StepKind.FIRST), (2, StepKind.STEADY), (None, StepKind.STEADY)])
def test_what_was_asked_for_at_a_refusal_is_needed_when_it_was_refused(step_index: int | None, step: StepKind) -> None:
    sample = trial(asked(), DEVICE, allocator=ALLOCATOR, context=CONTEXT)
    failure = Failure(message="it needs more", step_index=step_index, bytes_needed=25 * GIB)
    needs = device_needs(sample.with_ranks(failure=failure))
    assert max(needs, key=lambda one: needs[one].total_bytes) is step
    assert needs[step].total_bytes == 25 * GIB


EMULATED = Path(__file__).parents[1] / "documents" / "records"


def test_a_13b_at_stage_2_needs_most_in_steps_and_says_what_start_up_needs() -> None:
    """Of an emulated run that was kept."""
    [sample] = [one for one in ended_trials(load_run(EMULATED)) if one.spec.strategy == "zero2"]
    assert when_needed(total_needs(device_needs(sample))) == "in steps, start-up 56.29 GiB"
    assert known(device_need(sample)).total_bytes == pytest.approx(68.41 * GIB, abs=0.01 * GIB)


def test_explain_says_what_the_allocator_reserves_at_start_up_and_in_steps() -> None:
    allocator = [reserved(*FIRST_STEP, 21 * GIB), reserved(*STEADY, 15 * GIB)]
    topic = known(peak_topic(trial(asked(), DEVICE, allocator=allocator, context=CONTEXT)))
    [said] = [line.text for line in topic.lines if line.text.startswith("The allocator")]
    assert said == (
        "The allocator of rank 0 reserves up to 21.00 GiB at start-up and 15.00 GiB in steps, including what start-up "
        "left; in addition CUDA context 1.00 GiB and NCCL 2.00 GiB."
    )
