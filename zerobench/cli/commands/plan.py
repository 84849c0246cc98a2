"""`zerobench plan`: predict what fits."""

from typing import Annotated

from zerobench.cli.answer import Answer, answering
from zerobench.cli.options import PLAN
from zerobench.search.plan_request import PlanRequest


@answering
def plan(request: Annotated[PlanRequest, PLAN]) -> Answer:
    """Predict what fits and how fast it is expected to be. No GPU needed."""
    from zerobench.cli.planning import plan

    return plan(request)
