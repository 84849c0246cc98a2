"""Changes of a trial of CPU ranks are simulated on CPU ranks, and judged by the one memory that a node has."""

from typing import Any

import pytest

from tests.report.sample_run import SampleTrial, completed_trial, failed_trial, trial_record
from tests.tools.kept_simulator import Kept
from tests.tools.known import known
from tests.tools.rank_records import ledger_row
from zerobench.app.search.changes_on_cpu import (
    Room,
    SimulatedChange,
    changes_on_cpu,
    judged_on_cpu,
    room_of,
    runs_on_cpu,
    unchanged_on_cpu,
)
from zerobench.common.vocabulary import Category, Phase, Place, Status, StepKind
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.observer import Observer
from zerobench.records.records import Failure, HostStanding, MemoryRow
from zerobench.report.explain.changes import ChangeOutcome, changes_topic, smallest

MIB = 2**20
REST = 300 * MIB
TWO_LAYERS = resolve_model(
    {"family": "llama", "name": "two layers", "num_layers": 2, "hidden_size": 512, "num_heads": 8, "vocab_size": 2048}
)


def killed(**fields: Any) -> SampleTrial:
    """A trial of two CPU ranks whose host memory was refused; the rest of each process was 300 MiB."""
    usual = {"model": TWO_LAYERS, "strategy": "zero1", "gpus_per_node": 2, "precision": "bf16"}
    sizes = {"micro_batch_size": 8, "sequence_length": 256}
    spec = TrialSpec.model_validate(usual | sizes | fields)
    standing = HostStanding(at="the failed allocation", by_category={Category.REST_OF_PROCESS: REST})
    return failed_trial(spec, Failure(message="refused", host_standing=standing), Status.OUT_OF_HOST_MEMORY)


@pytest.fixture(scope="module")
def simulated(kept_simulator: Kept, tmp_path_factory: pytest.TempPathFactory) -> list[SimulatedChange]:
    with kept_simulator():
        return changes_on_cpu(killed(), tmp_path_factory.mktemp("reports"), Observer())


def test_each_change_is_simulated_and_moves_nothing(simulated: list[SimulatedChange]) -> None:
    trial = killed()
    assert runs_on_cpu(trial)
    made = judged_on_cpu(trial, simulated, None)
    unchanged = made.unchanged
    assert unchanged.host_node_bytes is not None
    assert unchanged.host_node_bytes > 2 * REST
    found = {change.says: change for change in made.changes}
    assert not any("offload" in word or "GPU" in word for says in found for word in says)
    smaller, again = found["micro batch 1 instead of 8",], found["activation checkpointing",]
    for change in (smaller, again):
        assert 2 * REST < known(change.host_node_bytes) < unchanged.host_node_bytes
        assert change.fits
    assert "of a node's memory" in again.text
    assert "per GPU" not in again.text
    assert [change.slower for change in made.changes] == [None] * len(made.changes)
    shown = changes_topic(made.changes)
    assert not any("slower" in line.text or "time" in line.text for line in shown.lines)
    assert {change["expected_slower"] for change in shown.figures["changes"]} == {None}


def test_only_what_fits_the_nodes_memory_is_shown(simulated: list[SimulatedChange]) -> None:
    trial = killed()
    free = judged_on_cpu(trial, simulated, None)
    sizes = sorted(change.host_node_bytes for change in free.changes if change.host_node_bytes is not None)
    tight = judged_on_cpu(trial, simulated, sizes[0])
    unchanged, changes = tight.unchanged, tight.changes
    assert not unchanged.fits
    [topic] = unchanged_on_cpu(unchanged, tight.room)
    assert "does not fit" in topic.lines[0].text
    shown = smallest(changes)
    assert shown
    assert all(change.host_node_bytes == sizes[0] for change in shown)
    none_fits = judged_on_cpu(trial, simulated, 1).changes
    assert "Closest: " in changes_topic(none_fits).lines[0].text


def test_what_refused_is_judged_by_a_ranks_addresses_where_those_were_limited() -> None:
    """What the process takes of its addresses beside tensors is what it took at the refusal."""
    trial = killed()
    standing = HostStanding(
        at="the failed allocation",
        by_category={Category.PARAMETERS: 100 * MIB, Category.REST_OF_PROCESS: REST},
        address_space_bytes=900 * MIB,
        address_limit_bytes=1000 * MIB,
    )
    trial = trial.with_record(failure=_failed(standing))
    room = room_of(trial, 64 * MIB)
    assert (room.size_bytes, room.ranks, room.beside_bytes) == (1000 * MIB, 1, 800 * MIB)
    made = completed_trial(trial.spec)
    needed = known(room.needed_bytes(made))
    assert needed > 800 * MIB
    change = ChangeOutcome(
        ("x",), fits=False, needed_bytes=None, host_node_bytes=needed, on_cpu=True, on_host=room.name
    )
    assert "of a rank's address space (ulimit -v)" in change.text
    [topic] = unchanged_on_cpu(change, room)
    assert "of a rank's address space (ulimit -v), limited to 1000.00 MiB: does not fit." in topic.lines[0].text
    told_later = standing.model_copy(update={"is_last_account": True})  # the kernel killed it: memory was short
    killed_one = trial.with_record(failure=_failed(told_later))
    assert room_of(killed_one, 64 * MIB) == Room("a node's memory", 64 * MIB, 2, REST)
    assert room_of(killed(), 64 * MIB).needed_bytes(made) == 2 * (needed - 800 * MIB + REST)


def _failed(standing: HostStanding) -> Failure:
    return Failure(message="refused", host_standing=standing)


def test_a_trial_on_gpus_is_none_of_cpu_ranks() -> None:
    spec = killed().spec.model_copy(update={"evidence": "simulated"})
    there = spec.model_copy(update={"prediction": spec.prediction.model_copy(update={"gpu": "H100 SXM"})})
    assert not runs_on_cpu(SampleTrial(there, trial_record(there), []))


def held(
    category: Category, at_peak: int | None, place: Place = Place.DEVICE, *, phase: Phase = Phase.STEP, live: int = 0
) -> MemoryRow:
    """A row of a steady step."""
    return ledger_row(StepKind.STEADY, phase, place, category, at_peak, live)


@pytest.mark.parametrize(("rows", "tensors"), [
    ([], 0),
    ([held(Category.PARAMETERS, 7)], 7),
    ([held(Category.PARAMETERS, 7), held(Category.MASTER_WEIGHTS, 5, Place.HOST)], 12),
    ([held(Category.PARAMETERS, 7), held(Category.OPTIMIZER_STATES_ON_NVME, 5, Place.NVME)], 7),
    ([held(Category.PARAMETERS, 7), held(Category.TOTAL, 7), held(Category.REST_OF_PROCESS, 90, Place.HOST)], 7),
    ([held(Category.PARAMETERS, 7), held(Category.GRADIENTS, 8, phase=Phase.BACKWARD)], 8),
    ([held(Category.PARAMETERS, None), held(Category.GRADIENTS, 3)], 3),
    ([held(Category.PARAMETERS, 7, live=50)], 7),
    ([held(Category.PARAMETERS, 4), ledger_row(StepKind.FIRST, Phase.STEP, Place.DEVICE, Category.GRADIENTS, 6)], 6),
])  # fmt: skip
def test_a_change_needs_the_largest_phase_of_device_and_host_together(rows: list[MemoryRow], tensors: int) -> None:
    """A CPU's device is the host; files on a drive and what is no tensor are left out."""
    made = completed_trial(killed().spec).with_ranks(memory=rows)
    assert Room("a node's memory", None, ranks=2, beside_bytes=100).needed_bytes(made) == 2 * (tensors + 100)


def test_a_change_needs_what_its_largest_rank_needs_on_each() -> None:
    made = completed_trial(killed().spec).with_ranks(memory=lambda rank: [held(Category.PARAMETERS, 10 + rank.rank)])
    assert [rank.rank for rank in made.ranks] == [0, 1]
    room = Room("a node's memory", None, ranks=4, beside_bytes=0)
    assert room.needed_bytes(made) == 4 * 11
    assert room.needed_bytes(SampleTrial(made.spec, made.record, [])) is None


@pytest.mark.parametrize(("at_refusal", "by_rank", "beside"), [
    (300, (), 300),
    (None, (), 0),
    (300, (200, 100), 300),
    (300, (200, 400), 400),
    (None, (200, 100), 200),
])  # fmt: skip
def test_the_rest_of_a_process_is_the_most_that_was_seen_of_it(
    at_refusal: int | None, by_rank: tuple[int, ...], beside: int
) -> None:
    by_category = {Category.PARAMETERS: 5000} | ({} if at_refusal is None else {Category.REST_OF_PROCESS: at_refusal})
    trial = killed().with_record(failure=_failed(HostStanding(at="the refusal", by_category=by_category)))
    ranks = [
        rank.model_copy(update={"memory": [held(Category.REST_OF_PROCESS, None, Place.HOST, live=rest)]})
        for rank, rest in zip(completed_trial(trial.spec).ranks, by_rank, strict=False)
    ]
    assert room_of(SampleTrial(trial.spec, trial.record, ranks), 64).beside_bytes == beside


def test_without_a_failure_a_rank_takes_beside_tensors_what_its_record_says() -> None:
    made = completed_trial(killed().spec).with_ranks(memory=[held(Category.REST_OF_PROCESS, None, Place.HOST, live=9)])
    assert room_of(made, 64) == Room("a node's memory", 64, 2, 9)


@pytest.mark.parametrize(("taken", "limit", "is_addresses"), [
    (900, 1000, True), (None, 1000, False), (900, None, False), (0, 1000, False)
])  # fmt: skip
def test_addresses_are_what_refused_only_where_both_their_number_and_their_limit_are_known(
    taken: int | None, limit: int | None, is_addresses: bool
) -> None:
    standing = HostStanding(
        at="x", by_category={Category.PARAMETERS: 950}, address_space_bytes=taken, address_limit_bytes=limit
    )
    room = room_of(killed().with_record(failure=_failed(standing)), 64)
    beside_tensors = 0  # 900 of addresses and 950 of tensors: a page may be counted before it is mapped
    assert room == (
        Room("a rank's address space (ulimit -v)", 1000, 1, beside_tensors)
        if is_addresses
        else Room("a node's memory", 64, 2, 0)
    )


@pytest.mark.parametrize(("node_bytes", "fits"), [(None, True), (2 * 107, True), (2 * 107 - 1, False)])
def test_a_change_fits_that_needs_all_of_the_nodes_memory_and_no_byte_more(node_bytes: int | None, fits: bool) -> None:
    standing = HostStanding(at="the refusal", by_category={Category.REST_OF_PROCESS: 100})
    trial = killed().with_record(failure=_failed(standing))
    made = completed_trial(trial.spec).with_ranks(memory=[held(Category.PARAMETERS, 7)])
    judged = judged_on_cpu(trial, [((), made), (("smaller",), made), (("failed",), None)], node_bytes)
    assert (judged.unchanged.host_node_bytes, judged.unchanged.fits) == (214, fits)
    smaller, failed = judged.changes
    assert (smaller.says, smaller.fits, smaller.host_node_bytes) == (("smaller",), fits, 214)
    assert (failed.says, failed.fits, failed.host_node_bytes, failed.slower) == (("failed",), False, None, None)


@pytest.mark.parametrize(("devices", "expected"), [
    ((), True), (("cpu", "cpu"), True), (("cpu", "cuda"), False), (("cuda", "cuda"), False)
])  # fmt: skip
def test_a_trial_runs_on_cpu_where_each_of_its_ranks_did(devices: tuple[str, ...], expected: bool) -> None:
    trial = completed_trial(killed().spec)
    kinds = zip(trial.ranks, devices, strict=False)
    ranks = [rank.model_copy(update={"device_type": device}) for rank, device in kinds]
    assert runs_on_cpu(SampleTrial(trial.spec, trial.record, ranks)) is expected
