"""Changes of a trial of CPU ranks are simulated on CPU ranks, and judged by the one memory that a node has."""

from pathlib import Path
from typing import Any

import pytest

from tests.report.sample_run import SampleTrial, completed_trial, failed_trial, trial_record
from tests.tools.kept_simulator import Kept
from tests.tools.known import known
from zerobench.app.search.changes_on_cpu import (
    Room,
    SimulatedChange,
    changes_on_cpu,
    judged_on_cpu,
    room_of,
    runs_on_cpu,
    unchanged_on_cpu,
    why_no_rates,
)
from zerobench.common.vocabulary import Category, Status
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.observer import Observer
from zerobench.records.records import Failure, HostStanding
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
    made = judged_on_cpu(trial, simulated, None, 2)
    unchanged = made.unchanged
    assert unchanged.host_node_bytes is not None
    assert unchanged.host_node_bytes > 2 * REST
    found = {change.says: change for change in made.changes}
    assert not any("offload" in word or "GPU" in word for says in found for word in says)
    smaller, again = found["micro batch 1 instead of 8",], found["activation checkpointing",]
    for change in (smaller, again):
        assert 2 * REST < known(change.host_node_bytes) < unchanged.host_node_bytes
        assert change.fits
    assert smaller.slower == pytest.approx(0.0, abs=0.001)
    assert 0.1 < known(again.slower) < 0.34
    assert "of a node's memory" in again.text
    assert "per GPU" not in again.text
    assert again.text.endswith("slower by what is computed")
    [*_, basis] = changes_topic(made.changes, made.cost_basis).lines
    assert basis.text == "Slower: FLOPs alone, which is not time (bf16; rates are known in fp32)."


def test_what_a_change_costs_is_expected_time_where_the_rates_of_such_ranks_are_known(
    kept_simulator: Kept, tmp_path: Path
) -> None:
    """One sequence at a time instead of eight computes the same and takes longer: it is gathered eight times."""
    sizes = {"strategy": "zero3", "sequence_length": 128}
    trial = killed(precision="fp32", **sizes)
    with kept_simulator():
        made = judged_on_cpu(trial, changes_on_cpu(trial, tmp_path, Observer()), None, 2)
    found = {change.says: change for change in made.changes}
    smaller, again = found["micro batch 1 instead of 8",], found["activation checkpointing",]
    assert known(smaller.slower) > 0.3
    assert 0.05 < known(again.slower) < 0.34
    assert smaller.text.endswith(("% slower", " times the step time"))
    assert "at the rates of one thread of an AMD EPYC" in made.cost_basis
    assert "those of this machine are not known" in made.cost_basis


@pytest.mark.parametrize(("fields", "cores", "why"), [
    ({"precision": "bf16"}, 2, "bf16; rates are known in fp32"),
    ({"gpus_per_node": 4}, 4, "4 ranks; rates are known of up to 2 on one node"),
    ({}, 8, "4 threads a rank; rates are known of one"),
    ({}, None, "unknown threads a rank; rates are known of one"),
    ({"threads_per_rank": 1}, 8, None),
    ({}, 2, None),
])  # fmt: skip
def test_it_is_said_why_no_time_is_expected(fields: dict[str, Any], cores: int | None, why: str | None) -> None:
    assert why_no_rates(killed(**{"precision": "fp32", **fields}).spec, cores) == why


def test_only_what_fits_the_nodes_memory_is_shown(simulated: list[SimulatedChange]) -> None:
    trial = killed()
    free = judged_on_cpu(trial, simulated, None, 2)
    sizes = sorted(change.host_node_bytes for change in free.changes if change.host_node_bytes is not None)
    tight = judged_on_cpu(trial, simulated, sizes[0], 2)
    unchanged, changes = tight.unchanged, tight.changes
    assert not unchanged.fits
    [topic] = unchanged_on_cpu(unchanged, tight.room)
    assert "does not fit" in topic.lines[0].text
    shown = smallest(changes)
    assert shown
    assert all(change.host_node_bytes == sizes[0] for change in shown)
    none_fits = judged_on_cpu(trial, simulated, 1, 2).changes
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
