"""Which ranks divide what, on how many nodes, and where stage 3 cuts its sub-groups."""

import pytest

from tests.report.sample_run import spec
from zerobench.config.derived.sharding import nodes_of_neighbours, state_shard_size, sub_groups


def test_all_ranks_divide_the_states_or_a_group_of_mics() -> None:
    assert state_shard_size(spec("zero3", num_nodes=2, gpus_per_node=4)) == 8
    assert state_shard_size(spec("zero3", num_nodes=2, gpus_per_node=4, mics_shard_size=2)) == 2


@pytest.mark.parametrize(("size", "nodes"), [(1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_neighbours_fill_node_after_node(size: int, nodes: int) -> None:
    assert nodes_of_neighbours(spec("zero3", num_nodes=4, gpus_per_node=4), size) == nodes


@pytest.mark.parametrize(("parts", "limit", "groups"), [
    ([], 10, ()),
    ([3], 10, (3,)),
    ([10], 10, (10,)),
    ([3, 7], 10, (10,)),
    ([3, 8], 10, (11,)),
    ([3, 6, 1, 2], 10, (10, 2)),
    ([25, 1, 25], 10, (25, 26)),
    ([9, 9, 9], 10, (18, 9)),
])  # fmt: skip
def test_a_sub_group_is_closed_by_the_tensor_with_which_it_is_full(
    parts: list[int], limit: int, groups: tuple[int, ...]
) -> None:
    assert sub_groups(parts, limit) == groups
