"""What tests of a search have in common: the cells of their plan, each variant as the formula has it."""

import pytest

from zerobench.app.search.fastest import Cell, asked_of_formulas
from zerobench.app.search.plan import Plan


@pytest.fixture(scope="module")
def asked(plan: Plan) -> list[Cell]:
    assert plan.varied is not None
    return asked_of_formulas([one.trial for one in plan.planned if one.skipped is None], plan.varied, plan.cluster)
