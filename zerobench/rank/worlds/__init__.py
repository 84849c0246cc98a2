"""Worlds in which a trial's training loop may run: one file each, all with the same small interface (base.World)."""

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
    """Make the trial's world. Worlds are imported on demand, since the simulated one changes torch."""
    plays_all = trial.evidence is Evidence.EMULATED and trial.prediction.all_ranks
    file, _, maker = ("emulated.PeersWorld" if plays_all else _MADE_BY[trial.evidence]).partition(".")
    world: World = getattr(import_module(f"{__name__}.{file}"), maker)(trial)
    return world
