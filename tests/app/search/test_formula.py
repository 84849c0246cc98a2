"""A trial by formula, whatever world it was planned for."""

from zerobench.app.search.formula import formula_trial
from zerobench.app.search.plan import read_plan
from zerobench.app.search.plan_request import PlanRequest
from zerobench.config.trial.trial import Evidence


def test_a_trial_by_formula_says_that_it_is_one_and_is_the_same_work() -> None:
    request = PlanRequest(model="gpt2-125m", gpus="8", gpu="h200", evidence="simulated", sequence_length="512")
    [planned, *_] = read_plan(request).planned
    found = formula_trial(planned.trial)
    assert planned.trial.evidence is Evidence.SIMULATED
    assert found.spec.evidence is Evidence.FORMULA
    assert found.spec.config_hash == planned.trial.config_hash
    assert found.ranks
