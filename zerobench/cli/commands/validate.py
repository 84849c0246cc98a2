"""`zerobench validate`: how far predictions are off."""

from zerobench.cli.answer import Answer, answering
from zerobench.cli.requests import ValidateRequest


@answering
def validate(request: ValidateRequest) -> Answer:
    """Show prediction errors of a sweep, run measured and predicted."""
    from zerobench.cli.validate import validate

    return validate(request)
