"""A calibration file holds what the ranks of a run on GPUs measured outside torch, and predictions read it back."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.estimate.time.predicted_trials import expected, gpu, links, predicted
from tests.report.sample_run import (
    GPU,
    RUN_ID,
    SampleTrial,
    completed_trial,
    cpu_trials,
    sample_trials,
    spec,
    trial_record,
    write_run,
)
from tests.tools.refusals import one_line
from zerobench.common.errors import UserError
from zerobench.config.hardware.overheads import CalibratedGpu, Spread, StepConstants, load_calibration, overhead_of
from zerobench.config.trial.trial import Evidence, PredictionSpec, TrialSpec
from zerobench.estimate.clock.assumed import COPIES_WORDS, HOST_UPDATE_WORDS
from zerobench.estimate.clock.place import usual_cluster
from zerobench.estimate.clock.rates import rates_of
from zerobench.estimate.clock.step import ExpectedStep
from zerobench.estimate.time.bound import step_bound
from zerobench.estimate.time.expected import parts_of, published_step, timed_work
from zerobench.records.records import ContextMemory, StepTime
from zerobench.records.store import load_run
from zerobench.report.export.calibrate import calibration_of, write_calibration

MIB, GIB = 2**20, 2**30


def with_context(asked: TrialSpec, context_mib: list[int | None], collectives_mib: int | None = 300) -> SampleTrial:
    """A trial whose ranks measured these contexts, and whose processes took no more later."""
    contexts = [context(mib, collectives_mib) for mib in context_mib]
    return completed_trial(asked).with_ranks(context=lambda rank: contexts[rank.rank], device_memory=[])


def entry_of(tmp_path: Path, *trials: SampleTrial) -> CalibratedGpu:
    """What a run of these trials tells of the one GPU and world size that they have."""
    [entry] = calibration_of(load_run(write_run(tmp_path / "run", trials, samples=False).path)).gpus
    return entry


def context(context_mib: int | None, collectives_mib: int | None) -> ContextMemory:
    sizes = [None if mib is None else mib * MIB for mib in (context_mib, collectives_mib)]
    return ContextMemory(before_bytes=None, context_bytes=sizes[0], collectives_bytes=sizes[1])


def test_a_run_on_gpus_gives_an_entry_for_each_world_size(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path / "run", sample_trials(), samples=False).path)
    calibration = calibration_of(run)
    assert [(entry.gpu, entry.world_size, entry.num_ranks) for entry in calibration.gpus] == [(GPU, 1, 1), (GPU, 8, 64)]
    for entry in calibration.gpus:
        assert entry.context_bytes == Spread(median=514 * MIB, min=514 * MIB, max=514 * MIB)
        assert entry.collectives_bytes == Spread(median=320 * MIB, min=320 * MIB, max=320 * MIB)
        assert entry.rest_of_process_bytes == Spread(median=3 * GIB, min=3 * GIB, max=3 * GIB)
    assert calibration.run_id == run.run_id


def test_median_and_extremes_are_those_of_the_ranks_that_read_the_driver(tmp_path: Path) -> None:
    entry = entry_of(tmp_path, with_context(spec("zero1", gpus_per_node=4), [500, 540, None, 510]))
    assert entry.num_ranks == 4
    assert entry.context_bytes == Spread(median=510 * MIB, min=500 * MIB, max=540 * MIB)


def test_kernels_that_cuda_loads_at_their_first_launch_are_part_of_the_context(tmp_path: Path) -> None:
    """An H100's context took 616 MiB when it was made, and 758 once a step had run."""
    whole = completed_trial(spec("zero1", gpus_per_node=1))
    [rank] = whole.ranks
    assert {(row.nvml_process_bytes or 0) - row.reserved_bytes for row in rank.device_memory} == {834 * MIB}
    entry = entry_of(tmp_path, whole.with_ranks(context=context(500, 300)))
    assert entry.context_bytes == Spread(median=534 * MIB, min=534 * MIB, max=534 * MIB)


def test_a_solo_trial_tells_the_context_and_not_what_nccl_takes(tmp_path: Path) -> None:
    solo = with_context(spec("zero3", gpus_per_node=2, evidence="solo"), [500, 500], collectives_mib=1)
    entry = entry_of(tmp_path, solo)
    assert entry.context_bytes is not None
    assert entry.collectives_bytes is None


def test_predicted_trials_are_no_measurement(tmp_path: Path) -> None:
    entry = entry_of(
        tmp_path,
        with_context(spec("zero3", gpus_per_node=2), [500, 500]),
        with_context(spec("zero3", gpus_per_node=2, evidence="simulated"), [900, 900]),
    )
    assert (entry.num_ranks, entry.context_bytes) == (2, Spread(median=500 * MIB, min=500 * MIB, max=500 * MIB))


def test_the_versions_that_bear_on_the_figures_are_kept(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", sample_trials()[:1], samples=False)
    environment = {
        "versions": {
            "torch": "2.13.0",
            "flash-attn": None,
            "numpy": "2.0",
            "nvidia-nccl-cu13": "2.28",
            "deepspeed": None,
        },
        "driver": {"version": "580.65"},
        "torch_build": {"cuda": "13.0"},
    }
    folder.environment.write_text(json.dumps(environment))
    versions = calibration_of(load_run(folder.path)).versions
    assert versions == {"torch": "2.13.0", "nvidia-nccl-cu13": "2.28", "driver": "580.65", "torch_cuda": "13.0"}


def test_a_written_calibration_is_read_back_and_used_by_predictions(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", sample_trials(), samples=False)
    out = tmp_path / "own.yaml"
    written = write_calibration(folder.path, out)
    assert load_calibration(out) == written
    assert f"measured in run {written.run_id}" in out.read_text()
    overhead = overhead_of("H100 SXM", 8, out)
    assert (overhead.context_bytes, overhead.collectives_bytes) == (514 * MIB, 320 * MIB)
    assert overhead.rest_of_process_bytes == 3 * GIB
    assert list(tmp_path.glob(".*tmp")) == []


def test_a_run_on_cpus_says_that_a_gpu_is_missing(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", cpu_trials(), samples=False)
    with one_line(match=r"RUN: .*none of its 5 trials ran on a GPU"):
        write_calibration(folder.path, tmp_path / "out.yaml")
    assert not (tmp_path / "out.yaml").exists()


@pytest.mark.parametrize("update", [{"context": None}, {"context": context(None, None)}])
def test_a_run_whose_ranks_could_not_read_the_driver_says_so_with_nvmls_reason(
    tmp_path: Path, update: dict[str, Any]
) -> None:
    whole = completed_trial(spec("zero1"))
    (nvml,) = whole.record.nvml
    blind = whole.with_ranks(**update).with_record(nvml=[nvml.model_copy(update={"reason": "no library"})])
    with pytest.raises(UserError, match=r"CUDA context size not recorded .*; NVML: no library"):
        entry_of(tmp_path, blind)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", sample_trials()[:1], samples=False)
    with pytest.raises(UserError, match=r"--out: .*No such file or directory"):
        write_calibration(folder.path, tmp_path / "none" / "out.yaml")


CHIP = "B200 SXM"
"""Of which no published run was fitted."""


SHIPPED = StepConstants(slower=1.0, launch_s=7e-6, python_slower=1.33, step_s=0.006)


def timed(times: float, machine: StepConstants = SHIPPED, *, alone: bool = False, **axes: Any) -> SampleTrial:
    """As measured on GPUs of a machine with such constants, in steps so many times as long as these say;
    `alone`: as one rank alone of many measured.
    """
    trial = predicted(CHIP, **axes)
    evidence = Evidence.SOLO if alone else Evidence.MEASURED
    asked = trial.spec.model_copy(update={"evidence": evidence, "prediction": PredictionSpec()})
    played = replace(trial, spec=trial.spec.model_copy(update={"evidence": Evidence.SOLO})) if alone else trial
    work = timed_work(played, gpu(CHIP), usual_cluster(trial.spec, gpu(CHIP)).links)
    assert work is not None
    parts = parts_of(work.at(machine))
    assert parts is not None
    half = times * sum(parts[:2]) / 2
    took = [StepTime(step_s=times * sum(parts), forward_s=half, backward_s=half, optimizer_s=None)] * 3
    known = {"device_type": "cuda", "device_name": CHIP, "trial_id": asked.trial_id, "step_times": took}
    return SampleTrial(asked, trial_record(asked), [trial.ranks[0].model_copy(update=known)])


def calibrate(folder: Path, monkeypatch: pytest.MonkeyPatch, *trials: SampleTrial) -> None:
    """From now on, predictions use the run of these trials."""
    file = folder / f"calibration-{len(trials)}.yaml"
    write_calibration(write_run(folder / f"run-{len(trials)}", trials, samples=False).path, file)
    monkeypatch.setenv("ZEROBENCH_CALIBRATION", str(file))


def test_the_steps_of_a_machine_tell_how_long_others_take_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of small and large work at three stages: its kernels, its launches and its Python are told apart."""
    machine = StepConstants(slower=1.15, launch_s=18e-6, python_slower=1.7, step_s=0.005)
    ways: list[dict[str, Any]] = [
        {"strategy": "zero1", "micro_batch_size": 1},
        {"strategy": "zero3", "micro_batch_size": 2},
        {"strategy": "single", "gpus_per_node": 1, "micro_batch_size": 4},
    ]
    calibrate(tmp_path, monkeypatch, *(timed(1.0, machine, **axes) for axes in ways))
    [steps] = load_calibration(tmp_path / "calibration-3.yaml").steps
    assert steps.constants is not None
    for name, near in (("slower", 0.05), ("launch_s", 0.25), ("python_slower", 0.1)):
        assert getattr(steps.constants, name) == pytest.approx(getattr(machine, name), rel=near), name
    for axes in ({"strategy": "zero3"}, {"strategy": "zero2", "micro_batch_size": 8}, {"strategy": "ddp"}):
        work = timed_work(predicted(CHIP, **axes), gpu(CHIP), links(CHIP))
        assert work is not None
        truth, shipped = (parts_of(work.at(each)) for each in (machine, None))
        assert truth is not None
        assert shipped is not None
        found = expected(predicted(CHIP, **axes), CHIP).step_s
        assert found == pytest.approx(sum(truth), rel=0.06)
        assert abs(found - sum(truth)) < abs(sum(shipped) - sum(truth)) / 2


def test_steps_with_states_on_the_host_tell_how_fast_its_link_and_its_memory_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of others with and without offload: their interval is no wider than that of steps on the device any more."""
    machine = SHIPPED.model_copy(update={"copies_slower": 1.4, "host_update_slower": 1.5})
    offloaded: dict[str, Any] = {"offload_optimizer": "cpu", "optimizer": "cpu_adam"}
    before = expected(predicted(CHIP, strategy="zero3", **offloaded), CHIP)
    ways: list[dict[str, Any]] = [{"strategy": "zero2", **offloaded}, {"strategy": "zero1"}]
    calibrate(tmp_path, monkeypatch, *(timed(1.0, machine, micro_batch_size=8, **axes) for axes in ways))
    [steps] = load_calibration(tmp_path / "calibration-2.yaml").steps
    assert steps.constants is not None
    assert steps.constants.host_update_slower == pytest.approx(1.5, rel=0.1)
    for axes in ({"strategy": "zero3", **offloaded}, {"strategy": "zero1"}):
        work = timed_work(predicted(CHIP, **axes), gpu(CHIP), links(CHIP))
        assert work is not None
        truth = parts_of(work.at(machine))
        assert truth is not None
        found = expected(predicted(CHIP, **axes), CHIP)
        assert found.step_s == pytest.approx(sum(truth), rel=0.06), axes
        assert found.high_s / found.low_s < 1.3 < before.high_s / before.low_s
        assert not any(words in found.assumptions for words in (COPIES_WORDS, HOST_UPDATE_WORDS))
        assert any(steps.constants.host_words in words for words in found.assumptions)


def test_measured_steps_set_the_expected_ones_right_and_make_their_interval_narrower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {"micro_batch_size": 8}
    offloaded = {"offload_optimizer": "cpu", "optimizer": "cpu_adam"}
    shipped, moved = (expected(predicted(CHIP, **axes), CHIP) for axes in (asked, offloaded))
    calibrate(tmp_path, monkeypatch, timed(1.3, **asked))
    once = expected(predicted(CHIP, **asked), CHIP)
    calibrate(tmp_path, monkeypatch, *(timed(times, micro_batch_size=size) for size, times in ((7, 1.29), (9, 1.31))))
    twice, there = (expected(predicted(CHIP, **axes), CHIP) for axes in (asked, offloaded))
    assert once.step_s == pytest.approx(1.3 * shipped.step_s, rel=1e-3)
    assert sum(twice.parts.values()) == pytest.approx(twice.step_s)
    assert twice.step_s == pytest.approx(1.3 * shipped.step_s, rel=0.01)
    widths = [found.high_s / found.low_s for found in (shipped, once, twice)]
    assert widths == sorted(widths, reverse=True)
    assert widths[1] < 1.2 < widths[0]
    assert [words for words in twice.assumptions if RUN_ID in words] == list(twice.assumptions)
    assert any("CPUAdam" in words for words in there.assumptions), "no trial of the run offloads"
    assert twice.high_s / twice.low_s < there.high_s / there.low_s < moved.high_s / moved.low_s
    assert expected(predicted("H100 SXM")).step_s == uncalibrated("H100 SXM").step_s, "another GPU"


def test_a_rank_alone_tells_of_computing_and_of_nothing_that_goes_over_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {"num_nodes": 4, "micro_batch_size": 8}
    machine = SHIPPED.model_copy(update={"slower": 1.5})
    solo = [timed(1.0, machine, alone=True, micro_batch_size=size) for size in (8, 16)]
    shipped = expected(predicted(CHIP, **asked), CHIP)
    calibrate(tmp_path, monkeypatch, *solo)
    found = expected(predicted(CHIP, **asked), CHIP)
    assert found.compute_s == pytest.approx(1.5 * shipped.compute_s, rel=0.01)
    assert shipped.exposed_communication_s > 0
    assert found.exposed_communication_s == pytest.approx(shipped.exposed_communication_s, rel=0.01)
    assert found.update_s == pytest.approx(shipped.update_s, rel=0.01)
    assert found.step_s == pytest.approx(sum(found.parts.values()))
    assert any("computing takes 1.5 times the published rates' time" in words for words in found.assumptions)
    assert found.high_s / found.low_s < shipped.high_s / shipped.low_s
    calibrate(tmp_path, monkeypatch, *solo, timed(1.2, micro_batch_size=8, num_nodes=4))
    assert expected(predicted(CHIP, **asked), CHIP).step_s == pytest.approx(1.2 * shipped.step_s, rel=1e-3), "all ranks"
    assert [steps.of_passes for steps in load_calibration(tmp_path / "calibration-3.yaml").steps] == [False]


def test_a_rank_alone_waits_for_no_other_and_sends_nothing() -> None:
    whole = predicted(CHIP, num_nodes=4)
    alone = replace(whole, spec=whole.spec.model_copy(update={"evidence": Evidence.SOLO}))
    at_once, among_many = (by_shipped_rates(trial, CHIP) for trial in (alone, whole))
    assert at_once is not None
    assert among_many is not None
    assert at_once.exposed_communication_s == 0
    slower = 1 + rates_of(gpu(CHIP))[0].jitter * math.log(32)
    assert among_many.compute_s == pytest.approx(slower * at_once.compute_s)


def by_shipped_rates(trial: SampleTrial, name: str) -> ExpectedStep | None:
    work = timed_work(trial, gpu(name), links(name))
    return None if work is None else published_step(work)


def uncalibrated(name: str) -> ExpectedStep:
    found = by_shipped_rates(predicted(name), name)
    assert found is not None
    return found


def test_trials_that_differ_leave_the_interval_wide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calibrate(tmp_path, monkeypatch, timed(0.5, micro_batch_size=8), timed(2.0, micro_batch_size=9))
    found = expected(predicted(CHIP), CHIP)
    assert found.high_s / found.low_s > 2.0 / 0.5


def test_no_calibration_makes_a_step_shorter_than_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calibrate(tmp_path, monkeypatch, timed(0.01))
    trial, at = predicted(CHIP, micro_batch_size=8), links(CHIP)
    bound = step_bound(trial, gpu(CHIP), at)
    assert bound is not None
    assert expected(trial, CHIP).step_s == pytest.approx(bound.step_s)
