"""What one trial leaves in each frame, held against its records figure by figure."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from tests.report.figures.test_batch_ramp import fixed, other, ramped
from tests.report.figures.test_recovery import EVERY, recovered
from tests.report.predicted_trial import asked, collective, rows, trial
from tests.report.sample_run import GIB, GPU, MIB, SampleTrial, completed_trial, failed_trial, on_cpu, spec
from tests.tools.at_least_one import at_least_one
from tests.tools.known import known
from zerobench.common.vocabulary import Category, Phase, Place, Status, StepKind
from zerobench.config.derived.cluster import Cluster, read_rate
from zerobench.config.hardware.hardware import find_gpu
from zerobench.config.hardware.usual_node import HOST_BANDWIDTH
from zerobench.estimate.time.bound import step_bound
from zerobench.records.records import DeviceMemory, Failure, MemoryRow, NvmlDevice, NvmlSummary, PhaseMark, RankRecord
from zerobench.report.export.rows import PARTS
from zerobench.report.figures.batch_ramp import ramped_and_fixed
from zerobench.report.figures.make import trial_figures
from zerobench.report.figures.recovery import loss_distance, resumed
from zerobench.report.tables.model import lines_of

ZERO2 = completed_trial(spec("zero2"), alloc_retries=3)
RAMP = {"start_tokens": 65_536, "over_tokens": 4 * 65_536}


class PeakRow(NamedTuple):
    """A category at the peak of a place."""

    place: str
    rank: int
    phase: str
    category: str
    bytes: int


def peak_rows(made: SampleTrial) -> list[PeakRow]:
    """The categories of each place at its peak."""
    return [
        PeakRow(place.value, instant.rank, instant.phase.value, category.value, size)
        for place, instant in trial_figures(made).peaks
        for category, size in instant.categories.items()
    ]


def peak(rank: RankRecord, step: StepKind, place: Place) -> int | None:
    """The largest total of a place in one step, straight from the rows."""
    totals = [row for row in rank.memory if (row.step, row.place, row.category) == (step, place, Category.TOTAL)]
    return max((row.at_peak_bytes for row in totals if row.at_peak_bytes is not None), default=None)


def test_each_rank_has_its_steady_peak_and_the_peak_of_its_first_step_apart() -> None:
    by_rank = {row.rank: row for row in trial_figures(ZERO2).ranks}
    assert list(by_rank) == list(range(8))
    for rank in ZERO2.ranks:
        row = by_rank[rank.rank]
        assert row.device_peak_bytes == peak(rank, StepKind.STEADY, Place.DEVICE)
        assert row.first_peak_bytes == peak(rank, StepKind.FIRST, Place.DEVICE)
        assert row.host_peak_bytes == peak(rank, StepKind.STEADY, Place.HOST)
        assert len({row.device_peak_bytes, row.first_peak_bytes, row.host_peak_bytes}) == 3


def test_a_rank_says_who_it_is_and_where() -> None:
    [row] = [row for row in trial_figures(ZERO2).ranks if row.rank == 3]
    rank = ZERO2.ranks[3]
    for name in ("role", "hostname", "node", "device_name", "device_uuid"):
        assert getattr(row, name) == getattr(rank, name)


def test_what_the_driver_said_is_its_largest_over_all_phases() -> None:
    [row] = [row for row in trial_figures(ZERO2).ranks if row.rank == 0]
    seen = ZERO2.ranks[0].device_memory
    assert row.allocated_peak_bytes == max(one.peak_allocated_bytes for one in seen)
    assert row.reserved_peak_bytes == max(one.peak_reserved_bytes for one in seen)
    assert row.nvml_used_peak_bytes == max(one.nvml_used_bytes or 0 for one in seen)
    assert row.alloc_retries == 3
    assert (row.context_bytes, row.collectives_bytes, row.other_processes_bytes) == (514 * MIB, 320 * MIB, 3 * MIB)
    assert len({one.peak_allocated_bytes for one in seen}) > 1


def test_what_no_driver_said_is_empty_and_not_nought() -> None:
    names = ("allocated_peak_bytes", "reserved_peak_bytes", "nvml_used_peak_bytes", "alloc_retries", "context_bytes")
    for row in at_least_one(trial_figures(on_cpu(ZERO2)).ranks):
        assert [getattr(row, name) for name in names] == [None] * len(names)


def test_the_model_states_of_a_rank_are_those_of_its_ledger_and_empty_without_one() -> None:
    _, rank_rows = PARTS["ranks"]
    [row] = [row for row in rank_rows(trial_figures(ZERO2)) if row["rank"] == 0]
    held = {
        one.category: max(one.live_bytes, one.at_peak_bytes or 0)
        for one in ZERO2.ranks[0].memory
        if one.step is StepKind.STEADY and one.phase is Phase.STEP and one.place is Place.DEVICE
    }
    assert row["parameters_bytes"] == held[Category.PARAMETERS]
    states = (Category.MASTER_WEIGHTS, Category.FIRST_MOMENT, Category.SECOND_MOMENT)
    assert row["optimizer_bytes"] == sum(held[state] for state in states)
    assert (row["gradients_bytes"] or 0) > 0
    [row] = rank_rows(trial_figures(completed_trial(spec("single", gpus_per_node=1)).with_ranks(memory=[])))
    assert [row[name] for name in ("parameters_bytes", "gradients_bytes", "optimizer_bytes")] == [None] * 3


def test_the_categories_of_each_place_are_those_of_its_fullest_rank_and_moment() -> None:
    found = {(row.place, row.category): row for row in peak_rows(ZERO2)}
    assert {row.rank for row in found.values() if row.place == "device"} == {3}
    device = {category: row.bytes for (place, category), row in found.items() if place == "device"}
    assert sum(device.values()) == peak(ZERO2.ranks[3], StepKind.STEADY, Place.DEVICE)
    assert Category.TOTAL.value not in device
    assert {place for place, _ in found} == {"device", "host"}
    phases = {row.phase for row in found.values() if row.place == "device"}
    assert len(phases) == 1


def test_where_nobody_watched_within_the_phases_the_end_of_the_phase_stands() -> None:
    asked_nvme = spec("zero3", offload_optimizer="nvme", offload_param="cpu", nvme_path="/nvme")
    made = completed_trial(asked_nvme)

    def unwatched(row: MemoryRow) -> MemoryRow:
        blind = row.place is Place.NVME
        return row.model_copy(update={"at_peak_bytes": None, "own_peak_bytes": None}) if blind else row

    made = made.with_ranks(memory=lambda rank: [unwatched(row) for row in rank.memory])
    found = [row for row in peak_rows(made) if row.place == "nvme"]
    ends = [row for row in made.ranks[0].memory if row.place is Place.NVME and row.category is not Category.TOTAL]
    assert found
    assert {row.category: row.bytes for row in found} == {row.category.value: row.live_bytes for row in ends}


def test_phases_are_those_of_the_fullest_rank_with_its_own_clock() -> None:
    found = {(row.step, row.phase, row.place): row for row in trial_figures(ZERO2).phases}
    assert {row.rank for row in found.values()} == {3}
    assert len(found) == 2 * (4 + 3)
    rank = ZERO2.ranks[3]

    def mark(kind: str, phase: Phase) -> PhaseMark:
        return [mark for mark in rank.marks if (mark.kind, mark.phase) == (kind, phase)][-1]

    for (step, phase, place), row in found.items():
        its = mark("first" if step == "first" else "memory", Phase(phase))
        assert (row.start_s, row.end_s) == (its.start_s, its.end_s)
        [total] = [
            one
            for one in rank.memory
            if (one.step, one.phase, one.place, one.category) == (step, phase, place, Category.TOTAL)
        ]
        assert (row.live_bytes, row.peak_bytes) == (total.live_bytes, total.at_peak_bytes)


def test_a_phase_that_nobody_timed_has_no_clock_and_a_steady_one_that_of_the_last_memory_step() -> None:
    marks = [
        PhaseMark(step_index=index, kind=kind, phase=Phase.STEP, start_s=at, end_s=at + 1)
        for index, kind, at in ((0, "first", 10.0), (3, "memory", 20.0), (4, "memory", 30.0), (5, "timed", 40.0))
    ]
    found = {(row.step, row.phase): row.start_s for row in trial_figures(ZERO2.with_ranks(marks=marks)).phases}
    assert (found[StepKind.FIRST, "step"], found[StepKind.STEADY, "step"]) == (10.0, 30.0)
    assert found[StepKind.STEADY, "forward"] is None


def test_without_a_ledger_of_the_device_the_first_rank_stands_for_all() -> None:
    kept = [row for row in ZERO2.ranks[0].memory if row.place is not Place.DEVICE]
    assert {row.rank for row in trial_figures(ZERO2.with_ranks(memory=kept)).phases} == {0}
    assert list(trial_figures(replace(ZERO2, ranks=[])).phases) == []


def test_each_timed_step_is_that_of_the_slowest_rank_with_its_tokens() -> None:
    found = list(trial_figures(ZERO2).steps)
    assert [row.step_index for row in found] == list(range(7))
    assert [row.step_s for row in found] == [step.step_s for step in ZERO2.ranks[3].step_times]
    assert {row.tokens for row in found} == {8 * 8 * ZERO2.spec.sequence_length}


def test_notes_are_the_trials_the_ranks_and_each_departure_once() -> None:
    made = ZERO2.with_record(notes=["of the trial"]).with_ranks(departures=["departs"])
    made = made.with_rank(2, notes=["of rank two"])
    found = [(row.rank, row.note) for row in trial_figures(made).notes]
    assert found == [(None, "of the trial"), (2, "of rank two"), (None, "departs")]


def test_the_capacity_is_what_cuda_hands_out_on_the_smallest_device_of_the_trial() -> None:
    seen = ZERO2.with_ranks(device_capacity_bytes=79 * GIB).with_rank(5, device_capacity_bytes=39 * GIB)
    assert trial_figures(seen).capacity_bytes == 39 * GIB


def test_the_capacity_of_an_older_record_is_the_smallest_nvml_total_less_what_the_driver_keeps_of_it() -> None:
    [node] = ZERO2.record.nvml
    smaller = node.devices[5].model_copy(update={"total_bytes": 40 * GIB})
    nameless = node.devices[6].model_copy(update={"total_bytes": None})
    devices: list[NvmlDevice] = [*node.devices[:5], smaller, nameless, node.devices[7]]
    made = ZERO2.with_record(nvml=[node.model_copy(update={"devices": devices})])
    gpu = known(find_gpu(GPU))
    kept = known(gpu.usable_memory_bytes) / known(gpu.memory_bytes)
    assert round(kept, 4) == 0.9942
    assert trial_figures(made).capacity_bytes == int(40 * GIB * kept)
    unknown = [device.model_copy(update={"name": "Some GPU"}) for device in devices]
    made = ZERO2.with_record(nvml=[node.model_copy(update={"devices": unknown})])
    assert trial_figures(made).capacity_bytes == 40 * GIB
    unseen = NvmlSummary(hostname="node-1", available=False, reason="no driver")
    assert trial_figures(ZERO2.with_record(nvml=[unseen])).capacity_bytes is None


def test_a_measured_trial_is_of_the_gpu_that_it_ran_on_and_a_predicted_one_of_the_gpu_that_was_asked() -> None:
    measured = trial_figures(ZERO2)
    assert (measured.device_name, measured.gpu) == (GPU, "H100 SXM")
    assert trial_figures(on_cpu(ZERO2)).gpu is None
    failed = trial_figures(failed_trial(spec("zero0"), Failure(message="it failed")))
    assert (failed.device_name, failed.gpu, failed.capacity_bytes) == (None, None, None)
    predicted = trial_figures(trial(asked("zero1", prediction={"gpu": "A100 SXM 80GB"})))
    assert predicted.gpu == "A100 SXM 80GB"
    catalogued = known(find_gpu("A100 SXM 80GB"))
    assert predicted.capacity_bytes == catalogued.capacity_bytes


def test_a_steps_least_time_is_that_of_a_completed_simulation_alone() -> None:
    bound_flops = {Phase.FORWARD: 10**15, Phase.BACKWARD: 2 * 10**15}
    sent = [collective("all_reduce", Phase.BACKWARD, GIB)]
    kinds = (Category.MASTER_WEIGHTS, Category.FIRST_MOMENT, Category.SECOND_MOMENT)
    ledger = {(StepKind.STEADY, Phase.STEP): dict.fromkeys(kinds, GIB)}
    made, gpu = trial(asked(), ledger, flops=bound_flops, collectives=sent), known(find_gpu("H100 SXM"))
    rate = read_rate("host bandwidth", HOST_BANDWIDTH)
    bound = known(step_bound(made, gpu, Cluster(gpu, 1, 8, host_memory_bytes_per_s=rate).links))
    assert bound.is_whole
    assert trial_figures(made).step_bound_s == bound.step_s
    assert trial_figures(ZERO2).step_bound_s is None
    ended = made.with_record(status=Status.CRASH)
    assert trial_figures(ended).step_bound_s is None


def test_a_bound_that_lacks_a_term_is_no_least_time() -> None:
    without_flops = trial(asked(), {(StepKind.STEADY, Phase.STEP): {Category.PARAMETERS: GIB}})
    assert trial_figures(without_flops).step_bound_s is None
    sent = [collective("all_reduce", Phase.BACKWARD, GIB)]
    unknown_drive = asked("zero3", offload_optimizer="nvme", nvme_path="/nvme")
    made = trial(unknown_drive, {}, flops={Phase.FORWARD: 10**15, Phase.BACKWARD: 2 * 10**15}, collectives=sent)
    gpu = known(find_gpu("H100 SXM"))
    bound = known(step_bound(made, gpu, Cluster(gpu, 1, 8).links))
    assert not bound.is_whole
    assert bound.step_s is not None
    assert trial_figures(made).step_bound_s is None


def test_of_ranks_on_unlike_devices_the_first_one_says_the_gpu() -> None:
    mixed = ZERO2.with_rank(0, device_name="a device that no catalogue has")
    assert trial_figures(mixed).gpu is None
    assert trial_figures(ZERO2.with_rank(1, device_name="NVIDIA H200")).gpu == "H100 SXM"


def test_the_summary_has_when_it_ran_and_the_rule_that_skipped_it() -> None:
    found = trial_figures(ZERO2.with_record(rule="a_rule"))
    record = ZERO2.record
    assert (found.started_at_s, found.ended_at_s, found.rule) == (record.started_at_s, record.ended_at_s, "a_rule")
    assert found.void  # its allocator had to try again
    assert not trial_figures(completed_trial(spec("zero2"))).void


def test_settings_are_what_the_sweep_says_to_deepspeed_in_order_and_how_the_batch_grows() -> None:
    keys = {"zero_optimization.reduce_bucket_size": 500_000_000, "zero_optimization.overlap_comm": True}
    grown = spec("zero2", ds_config=keys, batch_ramp=RAMP)
    told = trial_figures(completed_trial(grown)).settings
    assert told == f"overlap_comm=true reduce_bucket_size=5e8 ramp={grown.batch_ramp}"
    assert trial_figures(ZERO2).settings == ""
    drive = {"nvme_path": "/nvme", "offload_optimizer": "nvme", "ds_config_file": "mine.json"}
    told = trial_figures(completed_trial(spec("zero3", **drive))).settings
    assert told == "mine.json nvme=/nvme"


def test_a_peak_that_the_first_rank_alone_did_not_measure_is_empty_there() -> None:
    made = ZERO2.with_rank(0, memory=[])
    found = {row.rank: row.device_peak_bytes for row in trial_figures(made).ranks}
    assert found[0] is None
    assert found[1] == peak(made.ranks[1], StepKind.STEADY, Place.DEVICE)


def test_a_row_of_the_driver_without_nvml_leaves_the_others_figures() -> None:
    seen: list[DeviceMemory] = list(ZERO2.ranks[0].device_memory)
    seen[-1] = seen[-1].model_copy(update={"nvml_used_bytes": None})
    [row] = [row for row in trial_figures(ZERO2.with_rank(0, device_memory=seen)).ranks if row.rank == 0]
    assert row.nvml_used_peak_bytes == max(one.nvml_used_bytes or 0 for one in seen)


def test_a_place_that_the_ledger_did_not_look_at_has_no_peak() -> None:
    ledger = {(StepKind.STEADY, Phase.STEP): {Category.PARAMETERS: 7}}
    made = ZERO2.with_ranks(memory=rows(Place.HOST, ledger))
    assert [(row.place, row.category, row.bytes) for row in peak_rows(made)] == [("host", "parameters", 7)]


def test_the_clock_of_the_start_is_that_of_the_start_whatever_kind_its_mark_is_of() -> None:
    marks = [PhaseMark(step_index=-1, kind="build", phase=Phase.INIT, start_s=1.0, end_s=2.0)]
    found = {(row.step, row.phase): row.start_s for row in trial_figures(ZERO2.with_ranks(marks=marks)).phases}
    assert found[StepKind.FIRST, "init"] == 1.0


def test_a_trial_that_was_resumed_has_the_distance_of_its_losses_once_the_same_work_is_known() -> None:
    made = recovered(EVERY, convert_s=3.0)
    found = trial_figures(made)
    assert found.resumed == resumed(made, ())
    told = known(found.named("a label", None, loss_distance(made, [made])).resumed)
    assert (told.loss_distance, told.convert_s) == (0.0, 3.0)
    crashed = made.with_record(status=Status.CRASH)
    assert trial_figures(crashed).resumed is None
    assert trial_figures(completed_trial(spec("zero1", gpus_per_node=2, checkpoint=EVERY))).resumed is None


def test_only_batches_that_grow_and_those_of_the_same_work_stand_beside_each_other() -> None:
    trials = [trial_figures(one) for one in (other(), fixed(), ramped())]
    found = lines_of(ramped_and_fixed(trials), lambda one: one.batches)
    assert [line.trial.trial_id for line in found] == [fixed().record.trial_id, *[ramped().record.trial_id] * 3]
    assert ramped_and_fixed(trials[:2]) == []
