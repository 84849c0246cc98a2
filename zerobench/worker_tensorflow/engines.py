"""Which engine a process of a TensorFlow trial is."""

from __future__ import annotations

from zerobench.spec.roles import Role, role_of
from zerobench.spec.trial import TfStrategy, TrialSpec
from zerobench.worker_tensorflow.engine import Engine
from zerobench.worker_tensorflow.parameter_server import Server, Worker
from zerobench.worker_tensorflow.replicated import ReplicatedModel


def make_engine(trial: TrialSpec, rank: int) -> Engine:
    """The engine of process `rank`; it joins the other processes, so nothing of TensorFlow may have run before."""
    if trial.tf_strategy is TfStrategy.PARAMETER_SERVER:
        return Server(trial) if role_of(trial, rank) is Role.SERVER else Worker(trial)
    return ReplicatedModel(trial)
