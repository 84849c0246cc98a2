"""One rank of N on torch's own CUDA stack: its bytes named, and those of the simulated world to the byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.emulated.against_simulated import misses, rows_of
from tests.tools.at_least_one import at_least_one
from tests.tools.known import known
from tests.tools.laid_out import trial_laid_out
from zerobench.common.errors import UserError
from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Category, Phase, Place, Status, StepKind
from zerobench.config.hardware.hardware import known_gpu
from zerobench.config.hardware.overheads import overhead_of, workspace_of
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import Evidence, PredictionSpec, StepsSpec, TrialSpec
from zerobench.emulator.emulator import Emulator
from zerobench.launch.run import simulator
from zerobench.launch.run.simulations import predict
from zerobench.launch.run.stop import Stop
from zerobench.records.folder import TrialFolder
from zerobench.records.records import MemoryCourses, RankRecord, TrialRecord
from zerobench.records.store import read_record

GPU = "H200 SXM"
SHAPE: dict[str, Any] = {
    "family": "llama",
    "name": "small",
    "num_layers": 2,
    "hidden_size": 256,
    "num_heads": 8,
    "num_kv_heads": 4,
    "intermediate_size": 512,
    "vocab_size": 509,
    "max_position_embeddings": 256,
}
SMALL = resolve_model(SHAPE)
CELLS: dict[str, dict[str, Any]] = {
    "zero0": {"strategy": "zero0"},
    "zero2": {"strategy": "zero2", "activation_checkpointing": True},
    "zero3": {"strategy": "zero3", "prediction": PredictionSpec(gpu=GPU, rank=15)},
    "offload": {"strategy": "zero2", "offload_optimizer": "cpu", "optimizer": "cpu_adam"},
    "fsdp": {"strategy": "fsdp"},
    "fp32": {"strategy": "zero1", "precision": "fp32", "model": resolve_model(SHAPE | {"num_kv_heads": 8})},
}


Ended = list[tuple[TrialRecord, TrialFolder]]


class Played(NamedTuple):
    """A cell in both worlds."""

    trial: TrialSpec
    emulated: RankRecord
    simulated: RankRecord
    courses: tuple[MemoryCourses, MemoryCourses]


def trial(world: Evidence, **axes: Any) -> TrialSpec:
    usual = {
        "model": SMALL,
        "num_nodes": 2,
        "gpus_per_node": 8,
        "micro_batch_size": 2,
        "sequence_length": 128,
        "steps": StepsSpec(warmup=0, memory=1, timed=1),
        "evidence": world,
        "prediction": PredictionSpec(gpu=GPU),
    }
    return TrialSpec.model_validate(usual | axes)


def play(trials: list[TrialSpec], folder: Path) -> Ended:
    pairs = [(one, trial_laid_out(folder / one.trial_id, one)) for one in trials]
    predict(pairs, "run", 2, Stop(), lambda _: None, lambda _: None)
    return [(read_record(place.record, TrialRecord), place) for _, place in pairs]


@pytest.fixture(scope="module")
def ended(emulator: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """All cells, emulated and then simulated, and one that is too large: one import for each world."""
    cells = [trial(world, **axes) for world in (Evidence.EMULATED, Evidence.SIMULATED) for axes in CELLS.values()]
    too_large = trial(Evidence.EMULATED, strategy="zero1", micro_batch_size=2**16)
    return play([*cells, too_large], tmp_path_factory.mktemp("played"))


@pytest.fixture(scope="module")
def played(ended: Ended) -> dict[str, Played]:
    """The cells."""
    cells = ended[:-1]
    assert [(record.status, record.reason) for record, _ in cells] == [(Status.COMPLETED, None)] * len(cells)
    trials = [trial(Evidence.SIMULATED, **axes) for axes in CELLS.values()]
    places = [place for _, place in cells]
    ranks = [
        read_record(place.rank_record(one.prediction.rank), RankRecord)
        for one, place in zip(trials * 2, places, strict=True)
    ]
    kept = [
        read_record(place.memory_courses(rank.rank), MemoryCourses) for place, rank in zip(places, ranks, strict=True)
    ]
    courses = zip(kept[: len(CELLS)], kept[len(CELLS) :], strict=True)
    pairs = zip(ranks[: len(CELLS)], ranks[len(CELLS) :], courses, strict=True)
    return {name: Played(one, *pair) for name, one, pair in zip(CELLS, trials, pairs, strict=True)}


@pytest.mark.parametrize("name", CELLS)
def test_the_simulated_worlds_peaks_are_those_of_torchs_own_allocator(played, name):
    rows = rows_of(*played[name][:3])
    assert [row for row in rows if misses(row)] == []
    assert max(abs(row.simulated_peak - row.emulated_peak) for row in rows) <= 4096


@pytest.mark.parametrize("name", CELLS)
def test_torchs_own_allocator_reserves_what_its_model_does(played, name):
    assert {(row.emulated_reserved, row.simulated_reserved) for row in rows_of(*played[name][:3])} == {
        (row.emulated_reserved, row.emulated_reserved) for row in rows_of(*played[name][:3])
    }


def sizes(rank: RankRecord, step: StepKind, phase: Phase) -> dict[Category, int]:
    rows = [row for row in rank.memory if (row.step, row.phase, row.place) == (step, phase, Place.DEVICE)]
    return {row.category: row.live_bytes for row in rows}


@pytest.mark.parametrize("name", CELLS)
def test_the_matrix_librarys_workspaces_have_their_name(played, name):
    live = sizes(played[name].emulated, StepKind.STEADY, Phase.STEP)
    assert live[Category.WORKSPACES] == 2 * workspace_of(GPU).workspace_bytes


@pytest.mark.parametrize("name", CELLS)
def test_both_worlds_name_the_same_bytes_alike(played, name):
    one = played[name]
    for step, phase in ((StepKind.FIRST, Phase.INIT), (StepKind.STEADY, Phase.STEP)):
        emulated, simulated = (sizes(rank, step, phase) for rank in (one.emulated, one.simulated))
        states = (Category.PARAMETERS, Category.MASTER_WEIGHTS, Category.FIRST_MOMENT, Category.SECOND_MOMENT)
        assert {state: emulated.get(state, 0) for state in states} == {
            state: simulated.get(state, 0) for state in states
        }


@pytest.mark.parametrize("name", CELLS)
def test_both_worlds_keep_the_course_of_start_up_and_of_a_steady_step(played, name):
    for rank, kept in at_least_one(
        zip((played[name].emulated, played[name].simulated), played[name].courses, strict=True)
    ):
        assert [one.phase for one in kept.phases] == [Phase.INIT, Phase.FORWARD, Phase.BACKWARD, Phase.STEP]
        for one in kept.phases:
            rows = [
                row for row in rank.memory if (row.step, row.phase, row.place) == (one.step, one.phase, Place.DEVICE)
            ]
            at_peak = {row.category: row.at_peak_bytes or 0 for row in rows}
            largest = max(map(sum, zip(*one.sizes_bytes.values(), strict=True)))
            total = at_peak[Category.TOTAL]
            assert total - at_peak.get(Category.ALLOCATOR_ROUNDING, 0) - total // 100 <= largest <= total
            live = sizes(rank, one.step, one.phase)
            assert one.sizes_bytes.get(Category.PARAMETERS, [0])[-1] == live.get(Category.PARAMETERS, 0)
        assert all(one.sites for one in kept.phases)


@pytest.mark.parametrize("name", CELLS)
def test_both_worlds_hear_the_same_collectives(played, name):
    def heard(rank: RankRecord) -> dict[tuple[str, ...], int]:
        return {
            (one.step, one.phase, one.kind, str(one.group_size), str(one.num_nodes)): one.message_bytes
            for one in rank.collectives
        }

    if name != "fsdp":  # whose barrier-free prefetches the instant group is asked for by other names
        assert heard(played[name].emulated) == heard(played[name].simulated)
    assert heard(played[name].emulated)


def test_a_record_says_that_no_value_was_computed_by_which_torch_and_judges_nothing(played):
    rank = played["zero2"].emulated
    assert any("no values are computed" in note and "built for CUDA" in note for note in rank.notes)
    assert (rank.losses, rank.step_times, rank.grad_norms) == ([], [], [])
    assert (rank.device_type, rank.backend, rank.process_memory) == ("cuda", "nccl", [])


COMMUNICATORS = {"zero0": 2, "zero2": 2, "zero3": 1, "offload": 2, "fsdp": 1, "fp32": 2}
"""Below stage 3 DeepSpeed's engine has a group of its own beside the one in which ranks meet (groups.py,
`_clone_world_group`)."""


@pytest.mark.parametrize("name", CELLS)
def test_memory_outside_torch_is_what_others_have_measured_of_each_communicator(played, name):
    known = overhead_of(GPU, 16)
    for rank in (played[name].emulated, played[name].simulated):
        assert rank.context.context_bytes == known.context_bytes
        assert rank.context.collectives_bytes == COMMUNICATORS[name] * known.collectives_bytes


@pytest.mark.parametrize("name", CELLS)
def test_the_stand_in_driver_shows_the_process_and_nothing_of_it_is_unexplained(played, name):
    rank = played[name].emulated
    steady = [row for row in rank.device_memory if row.step is StepKind.STEADY]
    assert steady
    for row in steady:
        assert row.nvml_used_bytes == row.nvml_process_bytes
        outside = rank.context.context_bytes + rank.context.collectives_bytes
        assert row.nvml_used_bytes == row.reserved_bytes + outside


def test_without_an_emulator_nothing_is_begun_and_one_line_says_how_to_get_one(tmp_path, monkeypatch):
    def missing() -> Emulator:
        raise UserError("emulator: not set up; run: zerobench setup emulator")

    monkeypatch.setattr(simulator, "find_emulator", missing)
    [(record, _)] = play([trial(Evidence.EMULATED, strategy="zero1")], tmp_path)
    assert (record.status, record.reason) == (Status.SKIPPED, "emulator: not set up; run: zerobench setup emulator")


@pytest.fixture(scope="module")
def too_large(ended: Ended) -> tuple[TrialRecord, RankRecord]:
    """A trial that needs more than its GPU has: its record, and its rank's."""
    record, place = ended[-1]
    return record, read_record(place.rank_record(0), RankRecord)


def test_a_trial_that_does_not_fit_says_what_it_needs_of_what_there_is(too_large):
    record, rank = too_large
    failure, context, memory = record.failure, rank.context, known_gpu(GPU).capacity_bytes
    assert record.status is rank.status is Status.OUT_OF_DEVICE_MEMORY
    assert memory is not None
    with_room = max(row.held_bytes for row in rank.device_memory) + context.context_bytes + context.collectives_bytes
    assert failure.bytes_needed == max(with_room, memory - failure.bytes_free + failure.bytes_asked)
    said = f"it needs {format_bytes(failure.bytes_needed)} of {format_bytes(memory)}: OutOfMemoryError in "
    assert record.reason.startswith(said)
    assert failure.bytes_asked > failure.bytes_free > 0
    assert failure.bytes_needed > memory


def test_what_did_not_fit_is_played_to_its_end_where_there_is_room(too_large):
    _, rank = too_large
    phases = {row.phase for row in rank.device_memory if row.step == StepKind.STEADY}
    assert phases == set(Phase) - {Phase.INIT}
    memory = known(known_gpu(GPU).capacity_bytes)
    assert max(row.peak_allocated_bytes for row in rank.device_memory) > memory
    assert rank.parameters is not None


WIDE = resolve_model(SHAPE | {"name": "wide", "hidden_size": 16384, "intermediate_size": 65536, "num_kv_heads": 8})
"""17 GB of parameters in two layers."""


@pytest.mark.usefixtures("emulator")
def test_what_is_refused_while_the_engine_is_built_has_its_account_too(tmp_path):
    axes = {"model": WIDE, "prediction": PredictionSpec(gpu="RTX 3090"), "num_nodes": 1, "gpus_per_node": 2}
    strategies = ("zero0", "zero1", "ddp")
    played = play([trial(Evidence.EMULATED, strategy=strategy, **axes) for strategy in strategies], tmp_path)
    for record, _ in at_least_one(played):
        assert record.failure is not None
        assert (record.status, record.failure.phase) == (Status.OUT_OF_DEVICE_MEMORY, Phase.INIT)
        standing = known(record.failure.standing)
        parts = standing.by_category
        assert sum(parts.values()) == standing.allocated_bytes
        assert parts[Category.PARAMETERS] > 0.3 * standing.allocated_bytes
        assert parts.get(Category.UNATTRIBUTED, 0) <= 0.01 * standing.allocated_bytes
