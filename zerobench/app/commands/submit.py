"""`zerobench submit`: hand a sweep to Slurm."""

from zerobench.app.terminal.answer import Answer, answering
from zerobench.app.terminal.requests import SubmitRequest


@answering
def submit(request: SubmitRequest) -> Answer:
    """Submit a sweep to Slurm. The same trials, records and reports as `run`."""
    from zerobench.app.terminal.submit import show, submit

    return show(request) if request.dry_run else submit(request)
