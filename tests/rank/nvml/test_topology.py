"""GPU links as the stand-in driver shows them."""

from typing import Any

from tests.nvml_standin.standin import Standin, uuid

PAIRS = """
    import json
    from zerobench.rank.nvml.nvml import list_devices
    from zerobench.rank.nvml.topology import gpu_topology
    devices = list_devices().devices
    print(json.dumps(gpu_topology(devices) + gpu_topology(devices[:1] * 2)))
"""


def pairs(standin: Standin, scenario: str) -> dict[tuple[str, str], dict[str, Any]]:
    found = {tuple(pair["gpus"]): pair for pair in standin.run(PAIRS, scenario)}
    assert found.pop((uuid(0), uuid(0)))["pcie"] == "same board"
    return found


def test_gpus_on_a_switch_have_as_many_links_as_the_one_with_fewer(standin: Standin) -> None:
    found = pairs(standin, "gpus 8\ngpu 1 link=12")
    assert len(found) == 28
    assert found[uuid(0), uuid(2)] == {"gpus": [uuid(0), uuid(2)], "pcie": "NODE", "nvlinks": 18, "through": "nvswitch"}
    assert found[uuid(0), uuid(1)]["nvlinks"] == 12
    assert found[uuid(0), uuid(4)]["pcie"] == "SYS"


def test_links_straight_to_another_gpu_count_for_that_pair_only(standin: Standin) -> None:
    found = pairs(standin, "gpus 3 switch=0 link=3")
    links = {pair: (told["nvlinks"], told["through"]) for pair, told in found.items()}
    assert links == {(uuid(0), uuid(1)): (2, None), (uuid(0), uuid(2)): (1, None), (uuid(1), uuid(2)): (2, None)}


def test_gpus_without_nvlink_have_none_of_it_and_a_lost_one_is_not_known(standin: Standin) -> None:
    found = pairs(standin, "gpus 3 link=0\nerr 2 nvmlDeviceGetNvLinkState 15")
    assert found[uuid(0), uuid(1)]["nvlinks"] == 0
    assert found[uuid(0), uuid(2)]["nvlinks"] is None
