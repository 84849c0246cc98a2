"""What one rank's process held of a real GPU beside torch's memory is what closed forms add to it."""

import pytest

from benchmarks.gpu_campaign.measured import read
from benchmarks.gpu_campaign.times_judged import GPU, H200, H200_FOLDERS, THIRD
from benchmarks.prediction.simulated import gpu_trial
from tests.tools.known import known
from zerobench.app.search.formula import formula_trial
from zerobench.config.trial.trial import Evidence, PredictionSpec

MIB = 1 << 20
MEASURED = [
    (gpu, row)
    for gpu, folder in ((GPU, THIRD), (H200, H200_FOLDERS["second"]))
    for row in read(folder / "outside_torch.csv")
]


def name(value: object) -> str | None:
    return "-".join(list(value.values())[:4]) if isinstance(value, dict) else None


@pytest.mark.parametrize(("gpu", "row"), MEASURED, ids=name)
def test_context_and_communicators_are_to_4_mib_what_the_driver_counted(gpu: str, row: dict[str, str]) -> None:
    axes = {key: row[key] for key in ("strategy", "offload_optimizer", "offload_param")}
    if row["offload_optimizer"] != "none":
        axes["optimizer"] = "adamw" if row["strategy"] == "fsdp" else "cpu_adam"
    spec = gpu_trial(row["model"], 0, 1, **axes, evidence=Evidence.FORMULA, prediction=PredictionSpec(gpu=gpu))
    found = known(formula_trial(spec).ranks[0].context)
    expected = known(found.context_bytes) + known(found.collectives_bytes)
    assert expected == pytest.approx(int(row["at_end_bytes"]), abs=4 * MIB)


def test_stages_0_to_2_took_a_second_communicator_and_one_process_none() -> None:
    held = {row["strategy"]: int(row["at_init_bytes"]) for gpu, row in MEASURED if gpu == H200}
    assert held["zero0"] == held["zero1"] == held["zero2"] == held["zero3"] + 388 * MIB
    assert held["zero3"] == held["fsdp"] == held["single"] + 558 * MIB
