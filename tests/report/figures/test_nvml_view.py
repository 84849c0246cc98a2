"""The waterfall from the driver's used memory to tensors."""

from tests.report.sample_run import GIB, MIB, SampleTrial, completed_trial, on_cpu, sample_trials, spec
from tests.tools.at_least_one import at_least_one
from tests.tools.known import known
from zerobench.common.vocabulary import Phase, StepKind
from zerobench.records.instants import GROUPS
from zerobench.report.figures.nvml_view import missed_spike_bytes, nvml_missing_reason, nvml_peak_bytes, waterfall


def two_ranks() -> SampleTrial:
    """A completed trial on two GPUs of eight."""
    return completed_trial(spec("zero1", gpus_per_node=2))


def test_the_parts_of_the_waterfall_add_up_to_what_nvml_read() -> None:
    for trial in at_least_one(sample_trials()[:9]):
        fall = known(waterfall(trial))
        outside = (fall.other_processes_bytes or 0) + (fall.context_bytes or 0) + (fall.collectives_bytes or 0)
        named = sum(known(fall.allocated).group_bytes(name) or 0 for name in GROUPS)
        assert outside + fall.slack_bytes + named + fall.unexplained_bytes == fall.used_bytes
        assert fall.unexplained_bytes == 840 * MIB - (3 + 514 + 320) * MIB


def test_the_waterfall_is_that_of_the_peak_of_the_fullest_device() -> None:
    fall = known(waterfall(sample_trials()[1]))
    assert fall.allocated is not None
    assert (fall.rank, fall.allocated.step, fall.allocated.phase) == (3, StepKind.STEADY, Phase.BACKWARD)


def test_where_torch_gave_memory_back_the_waterfall_is_that_of_the_phases_end() -> None:
    trial = two_ranks()
    row = next(row for row in trial.ranks[0].device_memory if row.step is StepKind.STEADY)
    given = row.model_copy(update={"reserved_bytes": row.peak_allocated_bytes - 1, "nvml_used_bytes": 79 * GIB})
    fall = known(waterfall(trial.with_ranks(device_memory=[given])))
    assert fall.allocated_bytes == row.allocated_bytes
    assert known(fall.allocated).total_bytes == row.allocated_bytes


def test_parts_that_are_not_known_stay_unexplained() -> None:
    fall = known(waterfall(two_ranks().with_ranks(context=None)))
    assert fall.context_bytes is None
    assert fall.unexplained_bytes == 840 * MIB


def test_without_nvml_there_is_no_waterfall_but_a_reason() -> None:
    trial = on_cpu(two_ranks())
    assert waterfall(trial) is None
    assert nvml_peak_bytes(trial) is None
    assert nvml_missing_reason([trial, trial]) == ["libnvidia-ml.so.1 was not found"]


def test_only_devices_that_the_trial_ran_on_count() -> None:
    trial = two_ranks()
    (summary,) = trial.record.nvml
    other = summary.devices[0].model_copy(update={"gpu_uuid": "GPU-other", "peak_used_bytes": 79 * GIB})
    both = summary.model_copy(update={"devices": [*summary.devices, other]})
    assert nvml_peak_bytes(trial.with_record(nvml=[both])) == nvml_peak_bytes(trial)


def test_a_device_is_known_by_its_uuid_however_that_is_spelt() -> None:
    trial = two_ranks()
    stripped = trial.with_ranks(device_uuid=lambda rank: rank.device_uuid[4:].upper(), device_memory=[])
    assert nvml_peak_bytes(stripped) == nvml_peak_bytes(trial)


def test_a_peak_between_two_samples_is_noticed() -> None:
    zero0, zero1 = sample_trials()[1:3]
    reserved = max(row.peak_reserved_bytes for row in zero0.ranks[3].device_memory)
    seen = known(zero0.record.nvml[0].devices[3].peak_used_bytes)
    assert missed_spike_bytes(zero0) == reserved - seen
    assert missed_spike_bytes(zero1) is None
