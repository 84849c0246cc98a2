"""Rules with a limit refuse what lies beyond it, and what lies at it runs."""

from typing import Any

import pytest

from tests.config.machines import CPU, GPUS
from zerobench.config.derived.host_memory import host_state_bytes
from zerobench.config.derived.machine import Accelerator, Machine
from zerobench.config.models.parameters import num_parameters
from zerobench.config.models.presets import resolve_model
from zerobench.config.rules.rules import find_skip
from zerobench.config.rules.situation import Situation
from zerobench.config.trial.trial import TrialSpec

MODEL = resolve_model("gpt2-125m")
"""Of 1,024 positions."""


def broken(machine: Machine, **fields: Any) -> str | None:
    """The rule that such a trial breaks."""
    usual = {"model": MODEL, "strategy": "zero3", "gpus_per_node": 2, "precision": "bf16", "sequence_length": 128}
    trial = TrialSpec.model_validate(usual | fields)
    skip = find_skip(Situation(trial, machine, num_parameters(MODEL)))
    return None if skip is None else skip.rule


def played(evidence: str = "emulated", **prediction: Any) -> dict[str, Any]:
    return {"evidence": evidence, "prediction": {"gpu": "H100 SXM", **prediction}}


@pytest.mark.parametrize(("machine", "at_limit", "beyond", "rule"), [
    (GPUS, {"num_nodes": 1}, {"num_nodes": 2}, "nodes_exceed_machine"),
    (GPUS, {"gpus_per_node": 8}, {"gpus_per_node": 9}, "ranks_exceed_gpus"),
    (CPU, {"gpus_per_node": 8}, {"gpus_per_node": 9}, "ranks_exceed_cores"),
    (CPU.model_copy(update={"cpu_cores": 3}), {"gpus_per_node": 12}, {"gpus_per_node": 13}, "ranks_exceed_cores"),
    (GPUS, {"sequence_length": 1024}, {"sequence_length": 1025}, "sequence_exceeds_positions"),
    (GPUS, played(rank=1), played(rank=2), "rank_exceeds_world"),
    (GPUS, {"num_nodes": 2} | played(rank=3), {"num_nodes": 2} | played(rank=4), "rank_exceeds_world"),
    (GPUS, {"gpus_per_node": 8} | played(all_ranks=True), {"gpus_per_node": 9} | played(all_ranks=True),
     "all_ranks_need_emulation"),
    (GPUS, {"num_nodes": 4} | played(all_ranks=True), {"num_nodes": 5} | played(all_ranks=True),
     "all_ranks_need_emulation"),
    (GPUS, played("simulated"), played("simulated", all_ranks=True), "all_ranks_need_emulation"),
])  # fmt: skip
def test_what_lies_at_a_limit_runs_and_one_more_is_refused(
    machine: Machine, at_limit: dict[str, Any], beyond: dict[str, Any], rule: str
) -> None:
    assert broken(machine, **at_limit) is None
    assert broken(machine, **beyond) == rule


@pytest.mark.parametrize("fields", [{"num_nodes": 9}, {"gpus_per_node": 9}])
@pytest.mark.parametrize("evidence", ["simulated", "formula", "emulated"])
def test_a_prediction_is_of_machines_that_are_not_there(fields: dict[str, int], evidence: str) -> None:
    assert broken(GPUS, **fields, **played(evidence)) is None


def test_a_node_whose_memory_is_just_enough_for_the_states_runs_them() -> None:
    fields = {"model": MODEL, "strategy": "zero1", "gpus_per_node": 2, "precision": "bf16", "sequence_length": 128}
    needed = host_state_bytes(TrialSpec.model_validate(fields), num_parameters(MODEL) or 0, Accelerator.CPU)
    enough, less = (CPU.model_copy(update={"host_memory_bytes": size}) for size in (needed, needed - 1))
    assert broken(enough, strategy="zero1") is None
    assert broken(less, strategy="zero1") == "host_memory"
    assert broken(less.model_copy(update={"host_memory_bytes": None}), strategy="zero1") is None
