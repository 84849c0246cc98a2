"""Host memory per parameter: who holds how many bytes, and what page-locking rounds up."""

import pytest

from benchmarks.prediction.simulated import TINY, gpu_trial
from tests.report.explain.runs import BUCKETS, OFFLOADED, QUICKSTART, named
from tests.report.sample_run import SampleTrial, completed_trial, spec, trial_record
from tests.tools.kept_simulator import Simulate
from tests.tools.known import known
from tests.tools.rank_records import ledger_row
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.config.models.parameters import count_parameters
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.optimizers import deepspeeds_adamw
from zerobench.records.records import MemoryRow, ParameterTensor
from zerobench.report.figures.host_parameters import PAGE_CACHE, Holder, holders


def per_parameter(holder: Holder) -> float:
    return 0.0 if holder.steady is None else holder.steady.a_parameter


def test_offloaded_states_take_four_bytes_a_parameter_each_however_many_ranks_divide_them():
    found = {one.name: one for one in holders(named(BUCKETS, OFFLOADED).trial)}
    for name in ("fp32 masters", "first moment", "second moment", "fp32 gradients"):
        assert per_parameter(found[name]) == pytest.approx(4, rel=1e-3)
    parts = [per_parameter(one) for name, one in found.items() if name != "together"]
    assert sum(parts) == pytest.approx(per_parameter(found["together"]), rel=1e-3)
    for held in (found["together"].load, found["together"].init, found["together"].steady):
        assert held is not None
        assert held.node_bytes == 8 * (held.rank_bytes or 0) > 0


def test_a_trial_that_offloads_nothing_has_no_such_table():
    assert list(holders(named(QUICKSTART, "zero2").trial)) == []


def test_sixteen_bytes_become_twenty_eight_where_page_locking_rounds_up_to_powers_of_two(simulate: Simulate):
    """10 bytes a parameter are pinned at start-up (fp32 masters and gradients, a 16-bit copy), 8 come with the first
    step: 18 without page-locking, and close to twice 10 and 8 where the rank's part lies just above a power of two.
    """
    vocabulary = 509
    for _ in range(2):  # its parameters grow with the vocabulary in a straight line
        model = resolve_model({**TINY, "hidden_size": 256, "num_layers": 10, "vocab_size": vocabulary})
        counted = count_parameters(model)
        assert counted is not None
        vocabulary += -(-(2**23 + 4096 - counted.total) // 512)
    offloaded = {"offload_optimizer": "cpu", "optimizer": deepspeeds_adamw(offloaded=True)}
    pinned = gpu_trial(model, 2, 1, **offloaded)
    not_pinned = gpu_trial(
        model, 2, 1, **offloaded, ds_config={"zero_optimization.offload_optimizer.pin_memory": False}
    )
    totals = []
    for trial, rank in zip((pinned, not_pinned), simulate([pinned, not_pinned]), strict=True):
        found = {one.name: per_parameter(one) for one in holders(SampleTrial(trial, trial_record(trial), [rank]))}
        totals.append(found["together"] - 2 * (found["staging copies"] - 2))  # a gradient on its way
    assert totals[0] == pytest.approx(28, abs=0.2)
    assert totals[1] == pytest.approx(18, abs=0.2)


PARAMETERS = 1000


def _held(category: Category, peak: int, live: int, phase: Phase = Phase.STEP, place: Place = Place.HOST) -> MemoryRow:
    step = StepKind.FIRST if phase is Phase.INIT else StepKind.STEADY
    return ledger_row(step, phase, place, category, peak, live)


def _of(trial: SampleTrial) -> dict[str, Holder]:
    return {one.name: one for one in holders(trial.with_ranks(parameters=_counted()))}


def _counted() -> ParameterTensor:
    return ParameterTensor(total=PARAMETERS, trainable=PARAMETERS, by_component={"attention": PARAMETERS})


def test_the_pages_of_a_file_are_there_once_on_each_node_for_all_its_ranks() -> None:
    loaded = completed_trial(spec("zero3", num_nodes=2, gpus_per_node=4, weights="loaded"))
    mapped = loaded.with_ranks(mapped_peak_bytes=lambda rank: 100 * rank.rank, memory=[])
    files = _of(mapped)[PAGE_CACHE]
    load = known(files.load)
    assert (load.a_parameter, load.rank_bytes, load.node_bytes) == (2 * 700 / PARAMETERS, None, 700)
    assert (known(files.init).node_bytes, files.steady) == (0, None)
    assert PAGE_CACHE not in _of(loaded.with_ranks(mapped_peak_bytes=0, memory=[_held(Category.STAGING, 90, 80)]))


def test_offloaded_states_are_those_of_the_first_rank_times_all_and_on_a_node_times_its_own() -> None:
    offloaded = completed_trial(spec("zero3", num_nodes=2, gpus_per_node=4, offload_optimizer="cpu"))
    rows = [
        _held(Category.MASTER_WEIGHTS, 60, 50, Phase.INIT),
        _held(Category.MASTER_WEIGHTS, 30, 20),
        _held(Category.MASTER_WEIGHTS, 40, 10, Phase.BACKWARD),
        _held(Category.MASTER_WEIGHTS, 9000, 9000, place=Place.NVME),
        _held(Category.MASTER_WEIGHTS, 9000, 9000, place=Place.DEVICE),
    ]
    trial = offloaded.with_ranks(memory=lambda rank: rows if rank.rank == 0 else [])
    one = _of(trial)["fp32 masters"]
    held = [known(moment) for moment in (one.load, one.init, one.steady)]
    assert [moment.rank_bytes for moment in held] == [60, 50, 40]
    assert [moment.a_parameter for moment in held] == [pytest.approx(8 * size / PARAMETERS) for size in (60, 50, 40)]
    assert [moment.node_bytes for moment in held] == [4 * 60, 4 * 50, 4 * 40]
    assert one.most == pytest.approx(8 * 60 / PARAMETERS)


def test_where_weights_are_loaded_each_rank_counts_as_it_was() -> None:
    """One of them may read for all."""
    loaded = completed_trial(spec("zero3", num_nodes=2, gpus_per_node=2, weights="loaded"))
    sizes = (100, 20, 20, 20)
    trial = loaded.with_ranks(memory=lambda rank: [_held(Category.PARAMETERS, sizes[rank.rank], 10, Phase.INIT)])
    load = known(_of(trial)["parameters"].load)
    assert (load.rank_bytes, load.a_parameter, load.node_bytes) == (100, 160 / PARAMETERS, 80)
    on_cpu = trial.with_ranks(
        device_type="cpu", memory=[_held(Category.PARAMETERS, 7, 7, Phase.INIT, place=Place.DEVICE)]
    )
    assert known(_of(on_cpu)["parameters"].load).rank_bytes == 7
    assert _of(trial.with_ranks(memory=[_held(Category.PARAMETERS, 7, 7, Phase.INIT, place=Place.DEVICE)])) == {}


def test_what_the_process_itself_holds_is_taken_off_the_total_of_the_same_moment() -> None:
    offloaded = completed_trial(spec("zero3", gpus_per_node=1, offload_optimizer="cpu"))
    rows = [
        _held(Category.TOTAL, 900, 800),
        _held(Category.REST_OF_PROCESS, 300, 250),
        _held(Category.TOTAL, 950, 940, Phase.BACKWARD),
        _held(Category.REST_OF_PROCESS, 500, 490, Phase.BACKWARD),
        _held(Category.TOTAL, 70, 60, Phase.INIT),
    ]
    one = _of(offloaded.with_ranks(memory=rows))["together"]
    assert [known(moment).rank_bytes for moment in (one.load, one.init, one.steady)] == [70, 60, 600]


def test_lines_are_sorted_by_what_steady_steps_hold_with_the_total_and_the_files_last() -> None:
    loaded = completed_trial(spec("zero3", gpus_per_node=1, offload_optimizer="cpu", weights="loaded"))
    rows = [
        _held(Category.STAGING, 10, 10),
        _held(Category.FIRST_MOMENT, 40, 40),
        _held(Category.TOTAL, 50, 50),
        _held(Category.GRADIENTS, 4, 4),
        _held(Category.SECOND_MOMENT, 5, 5),
    ]
    found = _of(loaded.with_ranks(memory=rows, mapped_peak_bytes=9))
    assert list(found) == ["first moment", "staging copies", "second moment", "together", PAGE_CACHE]
