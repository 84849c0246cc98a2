"""Readings through the real pynvml from the stand-in driver; each machine is a child process."""

from typing import Any

import pytest

from tests.nvml_standin.standin import Standin, uuid

LIST = """
    import json
    from dataclasses import asdict
    from zerobench.rank.nvml.nvml import list_devices
    print(json.dumps(asdict(list_devices())))
"""
READ = """
    import json, sys
    from dataclasses import asdict
    from zerobench.rank.nvml.nvml import DeviceReader
    uuid, pci = (None if a == "-" else a for a in sys.argv[1:3])
    reader = DeviceReader.open(uuid, pci)
    reading = reader.read()._asdict()
    device = asdict(reader.device) if reader.device else None
    print(json.dumps({"reading": reading, "device": device, "fault": reader.fault, "lost": reader.lost,
                      "absent": reader.absent, "api": reader.memory_api,
                      "processes": {p.pid: [p.name, p.used_bytes] for p in reader.processes()},
                      "of_pid": [reader.process_bytes(int(pid)) for pid in sys.argv[3:]]}))
"""
MIG = """
    gpus 2
    gpu 0 mig=1
    mig 0 slot=0 gi=1 ci=0 uuid=MIG-aaaaaaaa-0000-0000-0000-000000000000 total=21474836480 name=H100_MIG_2g.20gb
    mig 0 slot=2 gi=5 ci=0 uuid=MIG-bbbbbbbb-0000-0000-0000-000000000000 total=42949672960 name=H100_MIG_3g.40gb
    mem 0/0 0:1073741824
    proc 0/2 25505 0:5368709120
"""
GB = 1_000_000_000
RESERVED = 549453824


def read(standin: Standin, scenario: str, device: str = uuid(0), *pids: int, driver: str = "new") -> Any:
    names = ("-", device.removeprefix("pci ")) if device.startswith("pci ") else (device, "-")
    return standin.run(READ, scenario, driver, *names, *map(str, pids))


def test_eight_gpus_are_listed_with_who_they_are(standin: Standin) -> None:
    listing = standin.run(LIST, "gpus 8 name=NVIDIA_H200\ngpu 3 bus=00000000:AB:00.0")
    assert [gpu["uuid"] for gpu in listing["devices"]] == [uuid(i) for i in range(8)]
    third = listing["devices"][3]
    assert (third["index"], third["name"], third["pci_bus_id"]) == (3, "NVIDIA H200", "00000000:AB:00.0")
    assert third["total_bytes"] == 85520809984
    assert (listing["reason"], listing["faults"]) == (None, [])
    assert (listing["driver_version"], listing["cuda_version"]) == ("550.163.01", "12.4")


@pytest.mark.parametrize(
    ("scenario", "driver", "reason"),
    [
        ("", "broken", "libnvidia-ml.so.1 not found"),
        ("init_error 4", "new", "no permission"),
        ("init_error 9", "new", "not loaded"),
        ("init_error 18", "new", "differ in version"),
        ("init_error 999", "new", "Unknown Error"),
        ("gpus 0", "new", "shows no GPU"),
    ],
)
def test_a_machine_whose_driver_cannot_be_asked_lists_nothing_and_says_why(
    standin: Standin, scenario: str, driver: str, reason: str
) -> None:
    listing = standin.run(LIST, scenario, driver)
    assert listing["devices"] == []
    assert reason in listing["reason"]


def test_without_the_binding_the_reason_names_the_package(standin: Standin) -> None:
    listing = standin.run("import sys; sys.modules['pynvml'] = None\n" + "\n".join(map(str.strip, LIST.splitlines())))
    assert "nvidia-ml-py" in listing["reason"]


def test_a_gpu_that_does_not_answer_is_a_fault_and_the_others_are_listed(standin: Standin) -> None:
    listing = standin.run(LIST, "gpus 3\nerr 1 * 15")
    assert [gpu["index"] for gpu in listing["devices"]] == [0, 2]
    assert listing["faults"] == ["GPU 1: GPU is lost (nvmlDeviceGetHandleByIndex)"]


@pytest.mark.parametrize("form", [uuid(5), uuid(5).removeprefix("GPU-"), "pci 00000000:2F:00.0"])
def test_a_device_is_found_by_every_name_that_torch_has_for_it(standin: Standin, form: str) -> None:
    answer = read(standin, "gpus 8\nmem 5 0:5000000", form)
    assert (answer["device"]["index"], answer["reading"]["used_bytes"]) == (5, 5_000_000)


def test_the_pci_bus_id_leads_on_where_the_uuid_leads_nowhere(standin: Standin) -> None:
    answer = standin.run(READ, "gpus 8", "new", "no-such-uuid", "00000000:17:00.0")
    assert answer["device"]["uuid"] == uuid(2)


def test_a_device_that_is_not_there_reads_none_and_is_named(standin: Standin) -> None:
    answer = read(standin, "gpus 8", "GPU-99999999-0000-0000-0000-000000000000", 1)
    told = {name: value for name, value in answer["reading"].items() if name != "t_s"}
    assert set(told.values()) == {None}
    assert answer["fault"].startswith("GPU-99999999-0000-0000-0000-000000000000: Not Found")
    assert (answer["device"], answer["processes"], answer["of_pid"]) == (None, {}, [None])


def test_todays_driver_tells_reserved_memory_apart_and_an_old_one_within_used(standin: Standin) -> None:
    new = read(standin, "gpus 1\nmem 0 0:3000000000")
    old = read(standin, "gpus 1\nmem 0 0:3000000000", driver="old")
    assert (new["api"], new["reading"]["used_bytes"], new["reading"]["reserved_bytes"]) == ("v2", 3 * GB, RESERVED)
    assert (old["api"], old["reading"]["used_bytes"], old["reading"]["reserved_bytes"]) == (
        "v1",
        3 * GB + RESERVED,
        None,
    )


def test_an_old_binding_reads_version_1(standin: Standin) -> None:
    code = "import pynvml; del pynvml.nvmlMemory_v2\n" + "\n".join(line[4:] for line in READ.splitlines())
    answer = standin.run(code, "gpus 1\nmem 0 0:3000000000", "new", uuid(0), "-")
    assert (answer["api"], answer["reading"]["used_bytes"]) == ("v1", 3 * GB + RESERVED)


def test_a_failing_device_does_not_settle_how_the_others_are_read(standin: Standin) -> None:
    code = f"""
        import json
        from zerobench.rank.nvml.nvml import DeviceReader
        first, second = DeviceReader.open("{uuid(0)}"), DeviceReader.open("{uuid(1)}")
        first.read(), second.read()
        print(json.dumps([first.memory_api, second.memory_api, first.fault]))
    """
    assert standin.run(code, "gpus 2\nerr 0 nvmlDeviceGetMemoryInfo_v2 999") == [
        "v2",
        "v2",
        "Unknown Error (nvmlDeviceGetMemoryInfo)",
    ]


def test_a_number_that_the_driver_does_not_know_is_none(standin: Standin) -> None:
    answer = read(standin, "gpus 1\nmem 0 0:na")
    assert answer["reading"]["used_bytes"] is None
    assert "does not report" in answer["fault"]


def test_after_the_first_reading_the_driver_is_asked_without_the_binding(standin: Standin) -> None:
    code = f"""
        import json, pynvml
        from zerobench.rank.nvml.nvml import DeviceReader
        reader = DeviceReader.open("{uuid(0)}")
        first = reader.read()
        del pynvml.nvmlDeviceGetMemoryInfo, pynvml.nvmlDeviceGetPowerUsage, pynvml.nvmlDeviceGetTotalEnergyConsumption
        second = reader.read()
        print(json.dumps([first[1:4], second[1:4], second.energy_joules >= first.energy_joules, reader.fault]))
    """
    first, second, energy_grows, fault = standin.run(code, "gpus 1 power_mw=412000\nmem 0 0:77")
    assert first == second == [77, RESERVED, 412.0]
    assert (energy_grows, fault) == (True, None)


def test_a_number_that_the_driver_knows_no_longer_is_none_until_it_knows_it_again(standin: Standin) -> None:
    code = f"""
        import json, time
        from zerobench.rank.nvml.nvml import DeviceReader
        reader, told = DeviceReader.open("{uuid(0)}"), []
        deadline = time.monotonic() + 20
        while len(told) < 3 and time.monotonic() < deadline:
            now = [reader.read().used_bytes, reader.fault]
            told += [] if told[-1:] == [now] else [now]
        print(json.dumps(told))
    """
    told = standin.run(code, "gpus 1\nmem 0 0:77 1500:na 2000:88")
    assert told == [[77, None], [None, "the driver does not report used memory"], [88, None]]


def test_a_lost_gpu_reads_none_and_says_so(standin: Standin) -> None:
    answer = read(standin, "gpus 1\nerr 0 nvmlDeviceGetMemoryInfo_v2 15 after=1")
    assert (answer["lost"], answer["fault"]) == (True, "GPU is lost (nvmlDeviceGetMemoryInfo)")
    assert answer["reading"]["used_bytes"] is None


def test_the_memory_of_a_process_is_told_by_its_pid_and_none_where_the_driver_does_not_know(standin: Standin) -> None:
    scenario = "gpus 1\nproc 0 4000001 0:700\nproc 0 4000002 0:900\nproc 0 4000003 0:na\nproc 0 4000004 G 0:50"
    answer = read(standin, scenario, uuid(0), 4000001, 4000002, 4000003, 4000004, 4000005)
    assert answer["of_pid"] == [700, 900, None, 50, None]
    assert answer["processes"]["4000001"] == [None, 700]


def test_drivers_that_lay_out_the_process_list_wrongly_are_read_rightly(standin: Standin) -> None:
    processes = "\n".join(f"proc 0 {4000000 + i} 0:{1000 + i}" for i in range(1, 6))
    answer = read(standin, f"gpus 1\nlegacy_v3 1\n{processes}")
    assert answer["processes"] == {str(4000000 + i): [None, 1000 + i] for i in range(1, 6)}


def test_power_and_energy_are_told_in_watts_and_joules(standin: Standin) -> None:
    code = f"""
        import json, time
        from zerobench.rank.nvml.nvml import DeviceReader
        reader = DeviceReader.open("{uuid(0)}")
        first = reader.read(); time.sleep(0.2); second = reader.read()
        seconds = second.t_s - first.t_s
        watts = (second.energy_joules - first.energy_joules) / seconds
        print(json.dumps([first.power_watts, watts, reader.read(power=False).power_watts]))
    """
    power, watts, unasked = standin.run(code, "gpus 1 power_mw=412000")
    assert power == 412.0
    assert watts == pytest.approx(412.0, rel=0.1)
    assert unasked is None


def test_a_device_that_does_not_tell_its_power_reads_none_and_is_asked_once(standin: Standin) -> None:
    answer = read(standin, "gpus 1\nerr 0 nvmlDeviceGetPowerUsage 3\nmem 0 0:77")
    assert (answer["reading"]["power_watts"], answer["reading"]["used_bytes"]) == (None, 77)
    assert answer["absent"] == {"power": "Not Supported (nvmlDeviceGetPowerUsage)"}


def test_mig_devices_are_listed_and_read_as_torch_and_cuda_name_them(standin: Standin) -> None:
    gpus = standin.run(LIST, MIG)["devices"]
    assert [mig[:12] for mig in gpus[0]["mig_uuids"]] == ["MIG-aaaaaaaa", "MIG-bbbbbbbb"]
    assert gpus[1]["mig_uuids"] == []
    bare = read(standin, MIG, "aaaaaaaa-0000-0000-0000-000000000000")
    full = read(standin, MIG, "MIG-bbbbbbbb-0000-0000-0000-000000000000", 25505)
    assert (bare["reading"]["used_bytes"], bare["device"]["index"], bare["device"]["is_mig"]) == (1073741824, 0, True)
    assert bare["device"]["total_bytes"] == 21474836480
    assert (full["reading"]["used_bytes"], full["of_pid"]) == (5368709120, [5368709120])


def test_a_split_gpu_that_only_root_may_read_says_so_and_its_mig_devices_are_read(standin: Standin) -> None:
    board = read(standin, "unprivileged 1\n" + MIG)
    part = read(standin, "unprivileged 1\n" + MIG, "MIG-aaaaaaaa-0000-0000-0000-000000000000")
    assert "no permission" in board["fault"]
    assert part["reading"]["used_bytes"] == 1073741824


def test_the_bindings_mismatch_error_is_a_fault_like_any_other(standin: Standin) -> None:
    code = f"""
        import json
        from zerobench.rank.nvml.nvml_driver import NvmlFault, driver
        handle = driver().call("nvmlDeviceGetHandleByUUID", "{uuid(0)}")
        try:
            driver().call("nvmlDeviceGetComputeRunningProcesses", handle)
        except NvmlFault as fault:
            print(json.dumps(str(fault)))
    """
    assert "too old" in standin.run(code, "gpus 1\nproc 0 4000001 0:700", "old")


def test_a_function_that_the_binding_lacks_is_a_fault_and_one_that_the_library_lacks_is_not_bound(
    standin: Standin,
) -> None:
    code = """
        import json
        from zerobench.rank.nvml.nvml_driver import NvmlFault, driver
        unbound = driver().bind("nvmlNoSuchFunction", None, None)
        try:
            driver().call("nvmlNoSuchFunction")
        except NvmlFault as fault:
            print(json.dumps([unbound, str(fault)]))
    """
    assert standin.run(code) == [None, "nvidia-ml-py is too old: no nvmlNoSuchFunction"]
