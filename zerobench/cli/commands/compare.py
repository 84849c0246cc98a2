"""`zerobench compare`: the same trials in two runs, and a gate for CI."""

from zerobench.cli.answer import Answer, answering
from zerobench.cli.requests import CompareRequest


@answering
def compare(request: CompareRequest) -> Answer:
    """Compare two runs. Memory to the byte, speed with a significance test."""
    from zerobench.cli.compare import compare_runs

    return compare_runs(request)
