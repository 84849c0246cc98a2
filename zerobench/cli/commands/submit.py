"""`zerobench submit`: hand a sweep to Slurm."""

from typing import Annotated

import typer

from zerobench.cli import completion
from zerobench.cli.answer import Answer, answering
from zerobench.cli.options import REPORTS, Only, Repeats, Reports, Sets, SweepName


@answering
def submit(
    sweep: SweepName = None,
    sets: Sets = None,
    only: Only = None,
    repeats: Repeats = None,
    nodes: Annotated[int | None, typer.Option(metavar="N", min=1, help="Maximum nodes per trial (1).")] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="GPUs per node; 0 for CPU nodes.")
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="GPU name, for predictions: h200.", autocompletion=completion.gpus),
    ] = None,
    cpus_per_node: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Cores per node (all that Slurm gives).")
    ] = None,
    partition: Annotated[str | None, typer.Option(metavar="NAME", help="Partition for trials.")] = None,
    cpu_partition: Annotated[
        str | None, typer.Option(metavar="NAME", help="Partition for predictions and the report (--partition).")
    ] = None,
    account: Annotated[str | None, typer.Option(metavar="NAME", help="As for sbatch.")] = None,
    qos: Annotated[str | None, typer.Option(metavar="NAME", help="As for sbatch.")] = None,
    time: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time limit per job (from its trials' timeouts).")
    ] = None,
    constraint: Annotated[str | None, typer.Option(metavar="LIST", help="As for sbatch; trials only.")] = None,
    reservation: Annotated[str | None, typer.Option(metavar="NAME", help="As for sbatch.")] = None,
    mem: Annotated[str | None, typer.Option(metavar="SIZE", help="Memory per node (all of it).")] = None,
    container: Annotated[str | None, typer.Option(metavar="IMAGE", help="Container image for the ranks.")] = None,
    container_runtime: Annotated[
        str | None, typer.Option(metavar="NAME", help="pyxis (the default) or apptainer.")
    ] = None,
    launcher: Annotated[
        str | None, typer.Option(metavar="NAME", help="Launcher: srun (the default) or deepspeed.")
    ] = None,
    python: Annotated[
        str | None, typer.Option(metavar="PATH", help="Python interpreter of the ranks (this one).")
    ] = None,
    trials_per_job: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Trials per job, run in sequence.")
    ] = None,
    throttle: Annotated[int | None, typer.Option(metavar="K", min=1, help="Array tasks running at a time.")] = None,
    sbatch: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Any other sbatch option; may be repeated.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be submitted; write nothing.")] = False,
    local: Annotated[bool, typer.Option("--local", help="Run the same scripts here, without Slurm.")] = False,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Submit missing trials of an earlier run.")
    ] = None,
    reports: Reports = REPORTS,
) -> Answer:
    """Submit a sweep to Slurm. The same trials, records and reports as `run`."""
    arguments = locals()
    from zerobench.cli import submit
    from zerobench.slurm.options import SubmitOptions

    options = {name: arguments[name] for name in SubmitOptions.model_fields}
    request = submit.SubmitRequest(sweep, sets or [], only or [], repeats, resume, reports, options, local=local)
    return submit.show(request) if dry_run else submit.submit(request)
