"""`zerobench run`: run a sweep."""

from zerobench.cli.answer import Answer, answering
from zerobench.cli.requests import RunRequest


@answering
def run(request: RunRequest) -> Answer:
    """Run a sweep and show its tables."""
    if request.frontier is not None or request.capacity is not None:
        from zerobench.cli.run_frontier import run_frontier

        return run_frontier(request)
    from zerobench.cli.run import list_trials, run

    return list_trials(request) if request.dry_run else run(request)
