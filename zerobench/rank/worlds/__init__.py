"""The worlds that a trial's training loop may run in: one file each, all through the same small door (base.World)."""

from importlib import import_module

from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.rank.worlds.base import World

_MADE_BY = {
    Evidence.SIMULATED: "simulated.SimulatedWorld",
    Evidence.EMULATED: "emulated.EmulatedWorld",
    Evidence.SOLO: "solo.SoloWorld",
    Evidence.MEASURED: "measured.MeasuredWorld",
}


def make_world(trial: TrialSpec) -> World:
    """The world that the trial names. Each is imported only where it is wanted: the simulated one changes torch."""
    plays_all = trial.evidence is Evidence.EMULATED and trial.prediction.all_ranks
    file, _, maker = ("emulated.PeersWorld" if plays_all else _MADE_BY[trial.evidence]).partition(".")
    made: World = getattr(import_module(f"{__name__}.{file}"), maker)(trial)
    return made
