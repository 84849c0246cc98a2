"""`zerobench run`: run a sweep."""

from zerobench.app.terminal.answer import Answer, answering
from zerobench.app.terminal.requests import RunRequest


@answering
def run(request: RunRequest) -> Answer:
    """Run a sweep and show its tables."""
    if request.frontier is not None or request.capacity is not None:
        from zerobench.app.terminal.run_frontier import run_frontier

        return run_frontier(request)
    from zerobench.app.terminal.run import list_trials, run

    return list_trials(request) if request.dry_run else run(request)
