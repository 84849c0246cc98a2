"""Which hardware a point of a sweep is about: this machine's, or that of a prediction."""

from typing import Any

import pytest

from tests.config.machines import CPU, EIGHT_H200, GPUS
from zerobench.common.errors import UserError
from zerobench.config.derived.machine import Accelerator, Machine
from zerobench.config.sweep.target import Targets
from zerobench.config.trial.trial import Evidence

H200 = EIGHT_H200.model_copy(update={"num_gpus": 4, "num_nodes": 3, "device_memory_bytes": 7})
UNKNOWN = GPUS.model_copy(update={"gpu_names": ("Some GPU", "Some GPU", "Another")})


def point(evidence: Evidence, gpu: str | None = None, rank: int | None = 3) -> dict[str, Any]:
    return {"evidence": evidence, "gpu": gpu, "rank": rank}


@pytest.mark.parametrize("evidence", [Evidence.MEASURED, Evidence.SOLO])
@pytest.mark.parametrize("machine", [CPU, H200, UNKNOWN])
def test_what_needs_a_device_is_about_this_machine_and_names_no_gpu(evidence: Evidence, machine: Machine) -> None:
    targets = Targets(machine)
    for gpu in ("auto", "H100 SXM", None):
        asked = point(evidence, gpu)
        assert targets.prediction(asked)["gpu"] is None
        assert targets.machine_of(asked | targets.prediction(asked)) is machine


@pytest.mark.parametrize(("machine", "gpu", "resolved"), [
    (H200, "auto", "H200 SXM"), (H200, "H100 SXM", "H100 SXM"), (H200, None, None), (CPU, "auto", None),
    (CPU, "H100 SXM", "H100 SXM"), (UNKNOWN, "H100 SXM", "H100 SXM"), (UNKNOWN, None, None),
])  # fmt: skip
def test_auto_is_this_machines_gpu_by_the_catalogues_name(
    machine: Machine, gpu: str | None, resolved: str | None
) -> None:
    assert Targets(machine).prediction(point(Evidence.SIMULATED, gpu))["gpu"] == resolved


def test_auto_of_a_gpu_that_is_not_catalogued_is_refused_with_its_names() -> None:
    with pytest.raises(UserError, match=r"^gpu: auto: evidence simulated: this machine's GPU, Some GPU, Another, is"):
        Targets(UNKNOWN).prediction(point(Evidence.SIMULATED, "auto"))
    nameless = GPUS.model_copy(update={"gpu_names": ()})
    with pytest.raises(UserError, match="this machine's GPU, of unknown name, is not in the hardware catalogue"):
        Targets(nameless).prediction(point(Evidence.SIMULATED, "auto"))


@pytest.mark.parametrize(("evidence", "rank"), [
    (Evidence.MEASURED, None), (Evidence.SOLO, 3), (Evidence.SIMULATED, 3), (Evidence.EMULATED, 3),
])  # fmt: skip
def test_a_rank_means_something_where_one_is_played(evidence: Evidence, rank: int | None) -> None:
    assert Targets(CPU).prediction(point(evidence))["rank"] == rank


@pytest.mark.parametrize(("machine", "gpu", "expected"), [
    (H200, "H200 SXM", H200),
    (CPU, None, CPU),
])  # fmt: skip
def test_a_prediction_of_this_machines_own_hardware_is_laid_out_as_it_is(
    machine: Machine, gpu: str | None, expected: Machine
) -> None:
    assert Targets(machine).machine_of(point(Evidence.SIMULATED, gpu)) is expected


@pytest.mark.parametrize(("machine", "gpu", "accelerator", "num_gpus", "host_memory"), [
    (H200, "H100 SXM", Accelerator.CUDA, 8, None),
    (CPU, "H100 SXM", Accelerator.CUDA, 8, None),
    (UNKNOWN, "H100 SXM", Accelerator.CUDA, 8, None),
    (H200, None, Accelerator.CPU, 0, H200.host_memory_bytes),
])  # fmt: skip
def test_elsewhere_a_node_of_eight_gpus_or_this_machines_cpu_stands_in(
    machine: Machine, gpu: str | None, accelerator: Accelerator, num_gpus: int, host_memory: int | None
) -> None:
    found = Targets(machine).machine_of(point(Evidence.SIMULATED, gpu))
    assert (found.accelerator, found.num_gpus, found.host_memory_bytes) == (accelerator, num_gpus, host_memory)
    assert (found.num_nodes, found.gpu_names, found.device_memory_bytes) == (1, (), None)
    assert found.cpu_cores == machine.cpu_cores
