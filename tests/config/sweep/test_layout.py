"""How many ranks lie where, whatever of the layout is given."""

from typing import Any

import pytest

from tests.config.machines import CPU, GPUS
from zerobench.common.errors import UserError
from zerobench.config.derived.machine import MAX_RANKS, Machine
from zerobench.config.sweep.target import auto_ranks, resolve_layout
from zerobench.config.trial.trial import Evidence

TWO_NODES = GPUS.model_copy(update={"num_nodes": 2})
THREE_NODES = GPUS.model_copy(update={"num_nodes": 3})
FOUR_CORES = CPU.model_copy(update={"cpu_cores": 4})


def layout(machine: Machine, evidence: Evidence = Evidence.MEASURED, **given: Any) -> tuple[int, int, int]:
    found = resolve_layout({"evidence": evidence, **given}, machine)
    return found["world_size"], found["num_nodes"], found["gpus_per_node"]


@pytest.mark.parametrize(("machine", "given", "expected"), [
    (GPUS, {}, (8, 1, 8)),
    (TWO_NODES, {}, (16, 2, 8)),
    (CPU, {}, (2, 1, 2)),
    (TWO_NODES, {"world_size": "auto"}, (16, 2, 8)),
    (TWO_NODES, {"num_nodes": "auto"}, (16, 2, 8)),
    (TWO_NODES, {"gpus_per_node": "auto"}, (8, 1, 8)),
    (TWO_NODES, {"world_size": 8}, (8, 1, 8)),
    (TWO_NODES, {"world_size": 16}, (16, 2, 8)),
    (TWO_NODES, {"world_size": 10}, (10, 2, 5)),
    (TWO_NODES, {"world_size": 9}, (9, 1, 9)),  # the rule that refuses it says how many GPUs that would be
    (THREE_NODES, {"world_size": 9}, (9, 3, 3)),
    (TWO_NODES, {"num_nodes": 2}, (16, 2, 8)),
    (TWO_NODES, {"gpus_per_node": 4}, (4, 1, 4)),
    (TWO_NODES, {"num_nodes": 2, "gpus_per_node": 4}, (8, 2, 4)),
    (TWO_NODES, {"world_size": 8, "num_nodes": 2}, (8, 2, 4)),
    (TWO_NODES, {"world_size": 8, "gpus_per_node": 4}, (8, 2, 4)),
    (TWO_NODES, {"world_size": 2, "gpus_per_node": 4}, (2, 1, 2)),
    (TWO_NODES, {"world_size": 8, "num_nodes": 2, "gpus_per_node": 4}, (8, 2, 4)),
    (GPUS, {"world_size": None, "num_nodes": None, "gpus_per_node": None}, (8, 1, 8)),
    (GPUS, {"world_size": MAX_RANKS, "num_nodes": MAX_RANKS}, (MAX_RANKS, MAX_RANKS, 1)),
])  # fmt: skip
def test_what_is_not_given_follows_from_what_is(
    machine: Machine, given: dict[str, Any], expected: tuple[int, int, int]
) -> None:
    assert layout(machine, **given) == expected


@pytest.mark.parametrize(("machine", "world", "expected"), [
    (GPUS, 8, (8, 1, 8)),
    (GPUS, 16, (16, 2, 8)),
    (GPUS, 12, (12, 2, 6)),
    (GPUS, 9, (9, 3, 3)),
    (GPUS, 13, (13, 13, 1)),
    (FOUR_CORES, 16, (16, 1, 16)),
    (FOUR_CORES, 17, (17, 17, 1)),
    (FOUR_CORES, 24, (24, 3, 8)),
])  # fmt: skip
@pytest.mark.parametrize("evidence", [Evidence.SIMULATED, Evidence.FORMULA, Evidence.EMULATED])
def test_more_ranks_than_the_machine_holds_are_predicted_on_nodes_of_eight(
    machine: Machine, world: int, expected: tuple[int, int, int], evidence: Evidence
) -> None:
    """A CPU holds four ranks a core."""
    assert layout(machine, evidence, world_size=world) == expected


@pytest.mark.parametrize(("given", "said"), [
    ({"world_size": 9, "num_nodes": 2}, "world_size 9, num_nodes 2: world_size must be num_nodes x gpus_per_node"),
    ({"world_size": 9, "gpus_per_node": 4}, "world_size 9, gpus_per_node 4: world_size must be"),
    ({"world_size": 8, "num_nodes": 2, "gpus_per_node": 8}, "world_size 8, num_nodes 2, gpus_per_node 8: world_size"),
    ({"world_size": MAX_RANKS + 1}, "world_size 1048577: 1048577 ranks; at most 1048576"),
    ({"num_nodes": MAX_RANKS}, "num_nodes 1048576: 8388608 ranks; at most 1048576"),
])  # fmt: skip
def test_a_layout_that_does_not_work_out_is_refused_with_what_was_given(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as refused:
        layout(GPUS, **given)
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize(("axis", "expected"), [("world_size", 16), ("num_nodes", 2), ("gpus_per_node", 8)])
def test_auto_is_all_gpus(axis: str, expected: int) -> None:
    assert auto_ranks(axis, TWO_NODES) == expected
