"""`zerobench validate`: prediction errors of a sweep."""

from zerobench.app.terminal.answer import Answer, answering
from zerobench.app.terminal.requests import ValidateRequest


@answering
def validate(request: ValidateRequest) -> Answer:
    """Show prediction errors of a sweep, run measured and predicted."""
    from zerobench.app.terminal.validate import validate

    return validate(request)
