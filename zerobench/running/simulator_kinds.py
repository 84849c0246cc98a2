"""Which trials one simulator plays together, and the environment that it needs."""

from __future__ import annotations

from collections.abc import Sequence

from zerobench.emulator.emulator import find_emulator
from zerobench.emulator.gpu import EmulatedGpu
from zerobench.folder import TrialFolder
from zerobench.spec.gpu_names import known_gpu
from zerobench.spec.trial import Evidence, TrialSpec

Pair = tuple[TrialSpec, TrialFolder]


def alike(trials: Sequence[Pair]) -> list[list[Pair]]:
    """Those of one simulator each: of one world, and where the GPU must be known from the start, of one GPU."""
    kinds: dict[tuple[Evidence, str | None], list[Pair]] = {}
    for trial, folder in trials:
        gpu = trial.prediction.gpu if trial.evidence is Evidence.EMULATED else None
        kinds.setdefault((trial.evidence, gpu), []).append((trial, folder))
    return list(kinds.values())


def added_for(trial: TrialSpec) -> dict[str, str]:
    """What the environment of the simulator of such trials has more than ours.

    Raises UserError: there is no emulator here, or none of that GPU.
    """
    if trial.evidence is not Evidence.EMULATED:
        return {}
    return find_emulator().variables(EmulatedGpu.of(known_gpu(trial.prediction.gpu or "")))
