"""Changes of a trial of CPU ranks are simulated on CPU ranks, and judged by the one memory that a node has."""

from __future__ import annotations

from typing import Any

import pytest

from tests.report.sample_run import SampleTrial, failed_trial, trial_record
from zerobench.records import Category, Failure, HostStanding, Status
from zerobench.report.changes import changes_topic, smallest
from zerobench.running.observer import Observer
from zerobench.search.changes_on_cpu import (
    SimulatedChange,
    changes_on_cpu,
    judged_on_cpu,
    runs_on_cpu,
    unchanged_on_cpu,
)
from zerobench.spec.presets import resolve_model
from zerobench.spec.trial import TrialSpec

MIB = 2**20
REST = 300 * MIB


def killed(**fields: Any) -> SampleTrial:
    """A trial of two CPU ranks whose host memory was refused; the rest of each process was 300 MiB."""
    usual = {"model": resolve_model("llama-20m"), "strategy": "zero1", "gpus_per_node": 2, "precision": "bf16"}
    sizes = {"micro_batch_size": 8, "sequence_length": 256}
    spec = TrialSpec.model_validate(usual | sizes | fields)
    standing = HostStanding(at="the failed allocation", by_category={Category.REST_OF_PROCESS: REST})
    return failed_trial(spec, Failure(message="refused", host_standing=standing), Status.OUT_OF_HOST_MEMORY)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> list[SimulatedChange]:
    return changes_on_cpu(killed(), tmp_path_factory.mktemp("reports"), Observer())


def test_each_change_is_simulated_and_moves_nothing(simulated: list[SimulatedChange]) -> None:
    trial = killed()
    assert runs_on_cpu(trial)
    unchanged, changes = judged_on_cpu(trial, simulated, None)
    assert unchanged.host_node_bytes is not None
    assert unchanged.host_node_bytes > 2 * REST
    found = {change.says: change for change in changes}
    assert not any("offload" in word or "GPU" in word for says in found for word in says)
    smaller, again = found["micro batch 1 instead of 8",], found["activation checkpointing",]
    for change in (smaller, again):
        assert change.host_node_bytes is not None
        assert 2 * REST < change.host_node_bytes < unchanged.host_node_bytes
        assert change.fits
    assert smaller.slower == pytest.approx(0.0, abs=0.001)
    assert again.slower is not None
    assert 0.1 < again.slower < 0.34
    assert "of a node's memory" in again.text
    assert "per GPU" not in again.text
    assert again.text.endswith("slower by what is computed")


def test_only_what_fits_the_nodes_memory_is_shown(simulated: list[SimulatedChange]) -> None:
    trial = killed()
    _, free = judged_on_cpu(trial, simulated, None)
    sizes = sorted(change.host_node_bytes for change in free if change.host_node_bytes is not None)
    unchanged, changes = judged_on_cpu(trial, simulated, sizes[0])
    assert not unchanged.fits
    [topic] = unchanged_on_cpu(unchanged, sizes[0])
    assert "does not fit" in topic.lines[0].text
    shown = smallest(changes)
    assert shown
    assert all(change.host_node_bytes == sizes[0] for change in shown)
    none_fits = judged_on_cpu(trial, simulated, 1)[1]
    assert "Closest: " in changes_topic(none_fits, "predicted").lines[0].text


def test_a_trial_on_gpus_is_none_of_cpu_ranks() -> None:
    spec = killed().spec.model_copy(update={"evidence": "simulated"})
    there = spec.model_copy(update={"prediction": spec.prediction.model_copy(update={"gpu": "H100 SXM"})})
    assert not runs_on_cpu(SampleTrial(there, trial_record(there), []))
