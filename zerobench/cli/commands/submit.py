"""`zerobench submit`: hand a sweep to Slurm."""

from zerobench.cli.answer import Answer, answering
from zerobench.cli.requests import SubmitRequest


@answering
def submit(request: SubmitRequest) -> Answer:
    """Submit a sweep to Slurm. The same trials, records and reports as `run`."""
    from zerobench.cli.submit import show, submit

    return show(request) if request.dry_run else submit(request)
