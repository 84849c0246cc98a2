"""Whether the disk has room for the files that a trial's weights are loaded from (`weights`), which it writes first."""

from __future__ import annotations

import shutil

from zerobench.folder import TrialFolder
from zerobench.records import Failure
from zerobench.spec.host_memory import element_bytes
from zerobench.spec.parameters import count_parameters
from zerobench.spec.trial import Evidence, TrialSpec
from zerobench.units import format_bytes


def lacks_room_for_weights(trial: TrialSpec, folder: TrialFolder) -> Failure | None:
    """Why they cannot lie in the trial's folder; None where they can, or nobody knows how large they are.

    Of simulated weights there are headers alone.
    """
    counts = count_parameters(trial.model)
    if not trial.is_loaded or trial.evidence is Evidence.SIMULATED or counts is None:
        return None
    needed, free = counts.total * element_bytes(trial), shutil.disk_usage(folder.path).free
    if needed <= free:
        return None
    what = f"weights {trial.weights}: {folder.path} has {format_bytes(free)} free"
    return Failure(
        message=f"{what}, their files need {format_bytes(needed)}; use --reports on a larger disk, or weights drawn",
        bytes_asked=needed,
        bytes_free=free,
        evidence=what,
    )
