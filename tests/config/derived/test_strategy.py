"""The registry of strategies."""

from pathlib import Path

import pytest

import zerobench
from zerobench.common.errors import UserError
from zerobench.config.derived.strategy import STRATEGIES, paper_stage, strategy_info
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import TfStrategy, TrialSpec


def test_single_is_the_one_reference_and_needs_no_deepspeed():
    assert [info.name for info in STRATEGIES.values() if info.is_reference] == ["single"]
    assert not strategy_info("single").uses_deepspeed


def test_deepspeed_has_the_zero_stages_and_is_asked_for_nothing_else() -> None:
    ours = {name for name, info in STRATEGIES.items() if info.uses_deepspeed}
    assert ours == {"zero0", "zero1", "zero2", "zero3"}


@pytest.mark.parametrize("name", list(STRATEGIES))
def test_the_registry_and_the_trial_agree_on_the_stage(name: str):
    trial = TrialSpec(model=resolve_model("llama-10m"), strategy=name)
    assert trial.zero_stage == strategy_info(name).zero_stage
    assert paper_stage(trial) == strategy_info(name).paper_stage
    served = trial.model_copy(update={"tf_strategy": TfStrategy.PARAMETER_SERVER})
    assert paper_stage(served) == (None if name == "tensorflow" else paper_stage(trial))


def test_every_strategy_has_a_worker_that_trains_it():
    # Read as text: importing the worker imports torch.
    package = Path(zerobench.__file__).parent
    door = (package / "rank/strategies/__init__.py").read_text()
    workers = {name for name in STRATEGIES if f'"{name}"' in door or (package / f"rank/{name}/__main__.py").is_file()}
    assert workers == set(STRATEGIES)


@pytest.mark.parametrize("name", ["zero4", "Single", "", 3, None, ["zero1"]])
def test_an_unknown_strategy_is_refused_with_all_choices(name: object):
    with pytest.raises(UserError, match=r"strategy: .* choices: single, ddp, zero0, zero1, zero2, zero3, fsdp"):
        strategy_info(name)


def test_a_misspelt_strategy_is_answered_with_the_nearest_right_one():
    with pytest.raises(UserError, match="did you mean 'single'"):
        strategy_info("singel")
