"""The shipped comparison of ways to train: the same global batch everywhere, on two cores as on eight GPUs."""

import pytest

from tests.config.machines import CPU, EIGHT_H200
from zerobench.config.derived.batch import autotp_size
from zerobench.config.derived.machine import Machine
from zerobench.config.derived.strategy import STRATEGIES, is_exact
from zerobench.config.sweep.expand import PlannedTrial, expand
from zerobench.config.sweep.sweep import load_sweep
from zerobench.config.trial.trial import Compression, Consistency, Precision, TfStrategy, TrialSpec
from zerobench.report.figures.parity import TOLERANCES

EVERY = set(STRATEGIES)


def planned(machine: Machine, *sets: str) -> list[PlannedTrial]:
    return expand(load_sweep("distributed-training-compared", sets), machine)


def trials(machine: Machine) -> list[TrialSpec]:
    return [one.trial for one in planned(machine) if one.skipped is None]


@pytest.mark.parametrize("machine", [CPU, EIGHT_H200], ids=["two cores", "eight GPUs"])
def test_every_trial_trains_the_same_batch_of_the_same_model_so_that_losses_and_seconds_compare(machine: Machine):
    found = trials(machine)
    assert len({trial.parity_hash for trial in found}) == 1
    assert {trial.global_batch_size for trial in found} == {24}
    assert {trial.precision for trial in found} == {Precision.FP32}
    assert TOLERANCES[Precision.FP32] == 5e-6
    assert len({(trial.threads_per_rank, trial.activation_checkpointing) for trial in found}) == 1


def test_on_two_cores_everything_runs_and_each_rank_is_a_worker_of_one_thread():
    assert [one.skipped for one in planned(CPU)] == [None] * len(planned(CPU))
    assert {trial.threads_per_rank for trial in trials(CPU)} == {1}
    assert {trial.world_size for trial in trials(CPU)} == {1, 2, 3}


def test_every_strategy_is_in_it_every_compression_that_gloo_has_and_both_servers():
    found = trials(CPU)
    assert {trial.strategy for trial in found} == EVERY
    assert {trial.strategy for trial in found if autotp_size(trial) > 1} == {"zero0"}
    assert {trial.compression for trial in found} == set(Compression) - {Compression.BF16}
    assert {trial.consistency for trial in found} == set(Consistency)
    in_tensorflow = {trial.tf_strategy for trial in found if trial.strategy == "tensorflow"}
    assert in_tensorflow == set(TfStrategy) - {TfStrategy.TPU}
    assert sum(not is_exact(trial) for trial in found) == 4  # three hooks and the asynchronous server


def test_what_needs_an_environment_of_its_own_is_skipped_with_the_command_that_makes_it():
    without = CPU.model_copy(update={"missing_environments": ("horovod", "tensorflow")})
    skipped = [one for one in planned(without) if one.skipped is not None]
    assert {one.trial.strategy for one in skipped} == {"horovod", "tensorflow"}
    for one in skipped:
        assert one.skipped is not None
        assert f"zerobench setup {one.trial.strategy}" in one.skipped.reason


def test_eight_gpus_are_used_by_all_that_eight_can_divide():
    found = trials(EIGHT_H200)
    on_eight = {trial.strategy for trial in found if trial.world_size == 8}
    assert on_eight >= {"ddp", "zero0", "zero1", "zero2", "zero3", "fsdp", "tensor"}
    assert {trial.world_size for trial in found} == {1, 2, 3, 4, 8}


def test_some_steps_are_watched_for_communication_and_none_of_them_is_timed():
    steps = trials(CPU)[0].steps
    assert (steps.communication, steps.timed) == (1, 5)
    assert steps.total == 1 + 2 * steps.warmup + steps.memory + steps.timed + steps.communication


def test_threads_of_a_rank_are_part_of_the_work_only_where_they_are_said():
    [plain] = {trial.config_hash for trial in _ddp_on_two("threads_per_rank=null")}
    [said] = {trial.config_hash for trial in _ddp_on_two("threads_per_rank=1")}
    assert plain != said
    unsaid = _ddp_on_two("threads_per_rank=null")[0].model_dump(exclude={"threads_per_rank"})
    assert TrialSpec.model_validate(unsaid).config_hash == plain


def _ddp_on_two(*sets: str) -> list[TrialSpec]:
    found = [one.trial for one in planned(CPU, *sets)]
    return [t for t in found if (t.strategy, t.world_size, t.compression) == ("ddp", 2, Compression.NONE)]
