"""`zerobench plan`: predict what fits."""

from typing import Annotated

from zerobench.app.search.plan_request import PlanRequest
from zerobench.app.terminal.answer import Answer, answering
from zerobench.app.terminal.options import PLAN


@answering
def plan(request: Annotated[PlanRequest, PLAN]) -> Answer:
    """Predict what fits and how fast it is expected to be. No GPU needed."""
    from zerobench.app.terminal.planning import plan

    return plan(request)
