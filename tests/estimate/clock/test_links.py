"""The least time of collectives on links, by numbers worked out by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.known import known
from zerobench.config.hardware.hardware import find_gpu
from zerobench.config.hardware.links import Links, links_of
from zerobench.estimate.clock.collectives import KindTraffic
from zerobench.estimate.clock.links import Flow, collective_s, flow, transfer_s

GB = 10**9
NODE = Links(link_gb_per_s=100, network_gb_per_s=25)


def message(kind: str, group_size: int, message_bytes: int = 8 * GB, num_nodes: int | None = None) -> KindTraffic:
    return KindTraffic(kind, group_size, 1, message_bytes, None, num_nodes)


@pytest.mark.parametrize(
    ("kind", "expected_gb"),
    [("all_reduce", 14), ("all_gather", 7), ("reduce_scatter", 7), ("broadcast", 7), ("reduce", 7), ("all_to_all", 7)],
)
def test_eight_gb_among_eight_ranks_cross_a_link_as_the_ring_bounds_say(kind: str, expected_gb: int) -> None:
    assert flow(kind, 8, 8 * GB) == Flow(expected_gb * GB, expected_gb * GB)
    assert transfer_s([message(kind, 8)], 8, NODE) == pytest.approx(expected_gb / 100)
    ring_s = 8.4e-6 + (2 if kind == "all_reduce" else 1) * 7 * 3.4e-6
    assert collective_s(replace(message(kind, 8), calls=3), 8, NODE) == pytest.approx(
        expected_gb / 100 + 3 * ring_s, rel=1e-9
    )
    assert (flow("send", 2, GB), flow("recv", 2, GB), flow("barrier", 2, GB)) == (Flow(0, GB), Flow(GB, 0), Flow())


def test_a_switch_that_adds_up_halves_an_all_reduce_and_lets_gather_and_scatter_share_a_link() -> None:
    sharp = NODE.model_copy(update={"link_reduces": True})
    assert transfer_s([message("all_reduce", 8)], 8, sharp) == pytest.approx(0.08)
    both = [message("all_gather", 8), message("reduce_scatter", 8)]
    assert transfer_s(both, 8, NODE) == pytest.approx(0.14)
    assert transfer_s(both, 8, sharp) == pytest.approx(0.08)  # 7 GB in and 1 GB out, 1 GB in and 7 GB out


def test_a_group_over_two_nodes_is_bound_by_what_crosses_their_edge() -> None:
    """Half of 8 GB comes from the other node, over eight times 25 GB/s; 7.5 GB reach a rank at 125 GB/s."""
    assert transfer_s([message("all_gather", 16)], 8, NODE) == pytest.approx(7.5 / 125)
    slow = NODE.model_copy(update={"network_gb_per_s": 1.0})
    assert transfer_s([message("all_gather", 16)], 8, slow) == pytest.approx(4 / 8)
    assert transfer_s([message("all_reduce", 16)], 8, slow) == pytest.approx(8 / 8)


def test_a_small_group_of_one_rank_a_node_crosses_the_edge_beside_the_other_ranks_groups() -> None:
    """Each of eight ranks of a node has a group of two of its own: 8 GB all-reduced between two nodes, eight times."""
    slow = NODE.model_copy(update={"network_gb_per_s": 1.0})
    assert transfer_s([message("all_reduce", 2, num_nodes=2)], 8, slow) == pytest.approx(8 * 8 / 8)
    assert transfer_s([message("all_reduce", 2, num_nodes=1)], 8, slow) == pytest.approx(8 / 100)
    assert transfer_s([message("all_reduce", 2)], 8, slow) == pytest.approx(8 / 100)  # an older record


def test_a_group_that_fills_its_nodes_costs_the_same_whether_or_not_its_nodes_are_told() -> None:
    for kind in ("all_gather", "all_reduce", "all_to_all"):
        assert transfer_s([message(kind, 16, num_nodes=2)], 8, NODE) == transfer_s([message(kind, 16)], 8, NODE)


def test_one_gpu_a_node_has_only_the_network() -> None:
    assert transfer_s([message("all_gather", 4)], 1, Links(network_gb_per_s=25)) == pytest.approx(6 / 25)


def test_every_rank_sends_its_own_message_over_the_edge_in_an_all_to_all() -> None:
    slow = NODE.model_copy(update={"network_gb_per_s": 1.0})
    assert transfer_s([message("all_to_all", 16)], 8, slow) == pytest.approx(4)


def test_a_missing_rate_or_an_unknown_kind_makes_no_time_rather_than_none_at_all() -> None:
    assert transfer_s([message("all_gather", 8)], 8, Links()) is None
    assert transfer_s([message("all_gather", 16)], 8, Links(link_gb_per_s=100)) is None
    assert transfer_s([message("gossip", 8)], 8, NODE) is None


def test_nothing_to_send_takes_no_time_on_unknown_links() -> None:
    assert transfer_s([], 8, Links()) == 0
    assert transfer_s([message("barrier", 8), message("all_reduce", 1)], 8, Links()) == 0


def test_datasheets_count_both_directions_and_links_one() -> None:
    gpu = known(find_gpu("H100 SXM"))
    links = links_of(gpu)
    assert (links.link_gb_per_s, links.host_link_gb_per_s, links.network_gb_per_s) == (450, 64, 50)
    assert links.link_reduces


@given(
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all"]),
    st.integers(1, 4),
    st.integers(1, 8),
    st.integers(0, 10**12),
)
def test_more_bytes_never_take_less_time_and_help_of_a_switch_never_more(
    kind: str, nodes: int, per_node: int, size: int
) -> None:
    one, more = (message(kind, nodes * per_node, nbytes) for nbytes in (size, size + 10**9))
    sharp = NODE.model_copy(update={"link_reduces": True})
    plain_s, more_s = transfer_s([one], per_node, NODE), transfer_s([more], per_node, NODE)
    helped_s = known(transfer_s([one], per_node, sharp))
    assert plain_s is not None
    assert more_s is not None
    assert plain_s <= more_s
    assert helped_s <= plain_s * (1 + 1e-9)
