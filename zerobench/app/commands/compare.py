"""`zerobench compare`: the same trials in two runs, and a gate for CI."""

from zerobench.app.terminal.answer import Answer, answering
from zerobench.app.terminal.requests import CompareRequest


@answering
def compare(request: CompareRequest) -> Answer:
    """Compare two runs. Memory to the byte, speed with a significance test."""
    from zerobench.app.terminal.compare import compare_runs

    return compare_runs(request)
