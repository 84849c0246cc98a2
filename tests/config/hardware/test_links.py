"""A byte takes one direction of a link, of which datasheets add up both; what is given goes before the catalogue."""

from tests.tools.known import known
from zerobench.config.hardware.hardware import Gpu, find_gpu
from zerobench.config.hardware.links import links_of


def h100() -> Gpu:
    return known(find_gpu("H100 SXM"))


def test_a_catalogued_link_has_half_of_what_its_datasheet_adds_up() -> None:
    gpu, links = h100(), links_of(h100())
    assert links.link_gb_per_s == known(gpu.link_gb_per_s) / 2
    assert links.host_link_gb_per_s == known(gpu.host_link_gb_per_s) / 2
    assert links.network_gb_per_s == gpu.network_gb_per_s


def test_rates_of_the_node_are_those_given() -> None:
    links = links_of(h100(), host_memory_gb_per_s=900.0, nvme_gb_per_s=20.0)
    assert (links.host_memory_gb_per_s, links.nvme_gb_per_s) == (900.0, 20.0)
    slowed = {"host_link_gb_per_s": known(links.host_link_gb_per_s) / 2, "host_memory_gb_per_s": 300.0}
    assert links.slowed(copies=2.0, host_update=3.0) == links.model_copy(update=slowed)
    assert links_of(h100()).slowed(copies=1.0, host_update=3.0) == links_of(h100())
