"""Which world a plan is made in: torch's own CUDA stack where it is at hand, and one line where it is not."""

import pytest

from tests.tools.no_emulator import MISSING, no_emulator  # noqa: F401 -- a fixture
from zerobench.app.search import plan_world
from zerobench.app.search.plan import read_plan
from zerobench.app.search.plan_request import PlanRequest
from zerobench.common.errors import UserError
from zerobench.config.trial.trial import Evidence
from zerobench.emulator.gpu import EmulatedGpu

ASKED = {"model": "gpt2-10m", "gpus": "8", "gpu": "h200", "sequence_length": "128"}


class Made:
    """An emulator that is there, for every GPU but one."""

    def variables(self, gpu: EmulatedGpu) -> dict[str, str]:
        if "V100" in gpu.name:
            raise UserError("gpu: V100: no code for compute capability 7.0")
        return {}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_world, "find_emulator", Made)


def worlds(**asked: object) -> set[Evidence]:
    return {item.trial.evidence for item in read_plan(PlanRequest(**(ASKED | asked))).planned}  # type: ignore[arg-type]


@pytest.mark.usefixtures("made")
def test_every_trial_of_a_plan_with_adapters_has_them() -> None:
    planned = read_plan(PlanRequest(**ASKED, lora="16")).planned  # type: ignore[arg-type]
    assert {item.trial.adapter for item in planned} == {"lora-16"}


@pytest.mark.usefixtures("made")
def test_a_plan_is_made_on_an_emulated_gpu_where_that_is_at_hand() -> None:
    assert worlds() == {Evidence.EMULATED}
    assert worlds(model=None, gpus=None, gpu=None, sequence_length=None, sweep="trillion") == {Evidence.EMULATED}
    assert read_plan(PlanRequest(**ASKED)).world.note is None  # type: ignore[arg-type]


@pytest.mark.usefixtures("no_emulator")
def test_elsewhere_it_is_simulated_and_one_line_says_how_to_get_the_better_one() -> None:
    plan = read_plan(PlanRequest(**ASKED))  # type: ignore[arg-type]
    assert {item.trial.evidence for item in plan.planned} == {Evidence.SIMULATED}
    assert plan.world.note == f"simulated; {MISSING}"


@pytest.mark.usefixtures("made")
def test_a_gpu_that_cannot_be_emulated_is_simulated_and_the_line_says_why() -> None:
    plan = read_plan(PlanRequest(**ASKED | {"gpu": "V100 SXM2 32GB"}, precision="fp16"))  # type: ignore[arg-type]
    assert {item.trial.evidence for item in plan.planned} == {Evidence.SIMULATED}
    assert str(plan.world.note).endswith("no code for compute capability 7.0")


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("world", plan_world.WORLDS)
def test_the_world_that_is_asked_for_is_taken(world: Evidence) -> None:
    assert worlds(evidence=world.value) == {world}
