"""The worlds that a trial's training loop may run in: one file each, all through the same small door (base.World)."""

from zerobench.spec.trial import Evidence, TrialSpec
from zerobench.worker.worlds.base import World


def make_world(trial: TrialSpec) -> World:
    """The world that the trial names. Each is imported only where it is wanted: the simulated one changes torch."""
    if trial.evidence is Evidence.SIMULATED:
        from zerobench.worker.worlds.simulated import SimulatedWorld

        return SimulatedWorld(trial)
    if trial.evidence is Evidence.EMULATED:
        from zerobench.worker.worlds.emulated import EmulatedWorld, PeersWorld

        return PeersWorld(trial) if trial.prediction.all_ranks else EmulatedWorld(trial)
    if trial.evidence is Evidence.SOLO:
        from zerobench.worker.worlds.solo import SoloWorld

        return SoloWorld(trial)
    from zerobench.worker.worlds.measured import MeasuredWorld

    return MeasuredWorld(trial)
