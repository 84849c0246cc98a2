"""`zerobench calibrate`: CUDA context, NCCL memory and step times from a run on GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from zerobench.app.terminal.answer import Answer, answering
from zerobench.app.terminal.options import REPORTS, Reports, RunName
from zerobench.common.units import counted


@answering
def calibrate(
    run: RunName = None,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Calibration file to write.")] = Path(
        "calibration.yaml"
    ),
    reports: Reports = REPORTS,
) -> Answer:
    """Write a calibration for predictions from a GPU run. CUDA context, NCCL and host process memory, step times."""
    from zerobench.config.hardware.overheads import CALIBRATION_VARIABLE
    from zerobench.records.store import find_run
    from zerobench.report.export.calibrate import write_calibration

    calibration = write_calibration(find_run(run, reports), out)

    def show() -> None:
        for entry in calibration.gpus:
            records = counted(entry.num_ranks, "rank record")
            typer.echo(f"{entry.gpu}, {counted(entry.world_size, 'rank')}: from {records}")
        for steps in calibration.steps:
            what = "passes of solo trials" if steps.of_passes else "steps"
            trials = counted(steps.num_trials, "trial")
            typer.echo(f"{steps.gpu}: {what} took {steps.factor:.3g} times as long as expected ({trials})")
            if (own := steps.constants) is not None:
                typer.echo(
                    f"  with this machine's own: kernels {own.slower:.3g} times the published time, {own.host_words}"
                )
        typer.echo(f"\nUse it for predictions: export {CALIBRATION_VARIABLE}={out.resolve()}")

    def document() -> dict[str, Any]:
        gpus = [{"gpu": gpu.gpu, "world_size": gpu.world_size, "ranks": gpu.num_ranks} for gpu in calibration.gpus]
        steps = [{"gpu": step.gpu, "trials": step.num_trials, "factor": step.factor} for step in calibration.steps]
        return {"file": str(out.resolve()), "variable": CALIBRATION_VARIABLE, "gpus": gpus, "steps": steps}

    return Answer(document, show)
