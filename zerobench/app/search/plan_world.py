"""The world a plan is made in: the requested one, else torch's own CUDA stack where it is at hand.

The emulated GPU is the better of the two that run the engine: its allocator is torch's own and no model of it, and it
takes no longer. It needs Linux, a compiler and a download; the simulated world stands in for it everywhere else.
"""

from dataclasses import dataclass

from zerobench.common.errors import UserError, unknown_choice
from zerobench.config.hardware.hardware import Gpu
from zerobench.config.trial.trial import Evidence
from zerobench.emulator.emulator import find_emulator
from zerobench.emulator.gpu import EmulatedGpu

WORLDS = (Evidence.EMULATED, Evidence.SIMULATED, Evidence.FORMULA)
"""Those that a plan can be made in, the best first."""


@dataclass(frozen=True)
class PlanWorld:
    """Source of a plan's figures."""

    evidence: Evidence
    note: str | None = None
    """Reason why it is not the best one, where nobody requested another."""


def plan_world(asked: str | None, gpu: Gpu, *, by_formula: bool) -> PlanWorld:
    """The world that `--evidence` or `--formula` names, else the best that is at hand for `gpu`.

    Raises UserError: no such world, two of them, or an emulated GPU that is not available.
    """
    if asked is not None:
        if asked not in WORLDS:
            raise unknown_choice("--evidence", asked, WORLDS)
        if by_formula and asked != Evidence.FORMULA:
            raise UserError(f"--formula contradicts --evidence {asked}: give one of them")
    elif by_formula:
        asked = Evidence.FORMULA
    if asked not in {None, Evidence.EMULATED}:
        return PlanWorld(Evidence(str(asked)))
    try:
        find_emulator().variables(EmulatedGpu.build(gpu))
    except UserError as error:
        if asked is not None:
            raise
        return PlanWorld(Evidence.SIMULATED, f"simulated; {error}")
    return PlanWorld(Evidence.EMULATED)
