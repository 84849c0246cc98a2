"""A script's work is a trial that can be predicted where enough of it is known."""

import pytest

from tests.tools.known import known
from zerobench.config.deepspeed.own_work import WORK, work_of
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import OwnScript, TrialSpec


def seen(*unknown: str) -> TrialSpec:
    return TrialSpec(model=resolve_model("llama-7b"), strategy="zero1", own=OwnScript(name="train", unknown=unknown))


@pytest.mark.parametrize("field", sorted(WORK))
def test_work_of_which_a_part_is_unknown_is_none(field: str) -> None:
    assert work_of(seen(field, "hyperparameters")) is None


def test_known_work_is_a_trial_like_others() -> None:
    made = known(work_of(seen("hyperparameters")))
    assert (made.own, made.strategy, made.model) == (None, "zero1", seen().model)
    assert work_of(made) is made
