"""tf.distribute's strategies in which every replica holds all model states, and their step.

- mirrored: one process, a logical CPU device for each replica (tf.distribute.MirroredStrategy).
- multi-worker-mirrored: a process for each replica, found through TF_CONFIG; collectives are TensorFlow's ring over
  gRPC (tf.distribute.MultiWorkerMirroredStrategy).
- tpu: one process, a replica on each core of the TPU that TPUClusterResolver finds (tf.distribute.TPUStrategy). Written
  from TensorFlow's source and never run on a TPU. `zerobench setup tensorflow` installs TensorFlow for the CPU, which
  reaches a TPU over the network; a local TPU needs the package tensorflow-tpu in that environment.

A step is one graph: each replica accumulates the gradients of its micro-batches, they are summed over all replicas,
clipped, and applied on each. Graphs are traced without AutoGraph, which would read source files again to rewrite
control flow, though none here depends on a tensor.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from zerobench.common.vocabulary import Category
from zerobench.config.derived.batch import micro_batches_of_share
from zerobench.config.hardware import tpu
from zerobench.config.trial.trial import TfStrategy, TrialSpec
from zerobench.rank.tensorflow.engine import Holder, accumulated
from zerobench.rank.tensorflow.memory import Counter, TpuMemory
from zerobench.rank.tensorflow.model import CausalModel
from zerobench.rank.tensorflow.start import Start, samples_of


class ReplicatedModel(Holder):
    """A process with one replica or all of them."""

    def __init__(self, trial: TrialSpec) -> None:
        super().__init__(trial)
        self.strategy = _make_strategy(trial)
        self._replicas = len(self.strategy.extended.worker_devices)
        """Number of replicas in this process."""
        self._is_first = min(_ids(self.strategy)) == 0

    def build(self, start: Start) -> None:
        """Build model, optimizer, and the graph of a step."""
        super().build(start)
        self._graph = _make_step(self.strategy, self.model, self.optimizer)

    def place(self, tokens: NDArray[Any], learning_rate: float) -> Any:
        """Place the micro-batches of each replica of this process on its device."""
        self.optimizer.learning_rate.assign(learning_rate)
        replicas, size = self.strategy.num_replicas_in_sync, self.trial.micro_batch_size
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(samples_of(tokens, context.replica_id_in_sync_group, replicas, size))
        )

    def step(self, placed: Any) -> list[float]:
        """Run the graph on all replicas of this process."""
        return [float(result) for result in self.strategy.experimental_local_results(self._graph(placed))]

    def mean(self, losses: Sequence[Sequence[float]]) -> list[float]:
        """Average over all replicas with an all-reduce."""
        return _mean_over_replicas(self.strategy, np.array(losses, np.float32).T)

    def barrier(self) -> None:
        """Wait with an all-reduce of zeros; unnecessary if one process has all replicas."""
        if self._replicas < self.strategy.num_replicas_in_sync:
            _mean_over_replicas(self.strategy, np.zeros((self._replicas, 1), np.float32))

    def counter(self) -> Counter:
        """Counter of the TPU, or of the process."""
        on_tpu = self.trial.tf_strategy is TfStrategy.TPU
        return TpuMemory(self.strategy.extended.worker_devices) if on_tpu else super().counter()

    @property
    def samples_per_step(self) -> int:
        """Sequences of all replicas of this process."""
        return micro_batches_of_share(self.trial) * self.trial.micro_batch_size * self._replicas

    def named_bytes(self) -> dict[Category, int]:
        """Bytes of the variables, one copy for each replica."""
        return {category: nbytes * self._replicas for category, nbytes in super().named_bytes().items()}

    def effective_config(self) -> dict[str, Any]:
        """Settings, and numbers of replicas."""
        config = super().effective_config()
        config["tensorflow"] |= {
            "replicas_in_sync": self.strategy.num_replicas_in_sync,
            "replicas_in_this_process": self._replicas,
        }
        return config

    @property
    def _saves(self) -> bool:
        return self._is_first


def _make_strategy(trial: TrialSpec) -> Any:
    """Make the trial's strategy; it joins the other processes, so TensorFlow must not have run before."""
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    if trial.tf_strategy is TfStrategy.TPU:
        return _tpu_strategy(trial)
    if trial.tf_strategy is TfStrategy.MIRRORED:
        tf.config.threading.set_intra_op_parallelism_threads(threads * trial.world_size)
        [cpu] = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * trial.world_size)
        return tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(trial.world_size)])
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    experimental = tf.distribute.experimental
    options = experimental.CommunicationOptions(implementation=experimental.CommunicationImplementation.RING)
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def _tpu_strategy(trial: TrialSpec) -> Any:
    """Connect to the TPU and initialize it (tpu_cluster_resolver.py, TPUClusterResolver.connect).

    Raises TensorFlow's error if no TPU answers, ValueError if its cores are not as many as the replicas.
    """
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect(tpu.address(os.environ))
    strategy = tf.distribute.TPUStrategy(resolver)
    cores = strategy.num_replicas_in_sync
    if cores != trial.world_size:
        raise ValueError(f"world_size: {trial.world_size}: this TPU has {cores} cores, one for each replica")
    return strategy


def _make_step(strategy: Any, model: CausalModel, optimizer: Any) -> Callable[[Any], Any]:
    """Make the graph of a step over each replica's micro-batches, int64 [micro_batches, micro_batch_size,
    sequence_length]; it returns each replica's mean loss.
    """

    def replica_step(micro_batches: Any) -> Any:
        loss, gradients = accumulated(model, micro_batches, strategy.num_replicas_in_sync)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    @tf.function(autograph=False)  # type: ignore[untyped-decorator] # TensorFlow publishes no types
    def step(micro_batches: Any) -> Any:
        return strategy.run(replica_step, args=(micro_batches,))

    return step  # type: ignore[no-any-return] # as above


def _mean_over_replicas(strategy: Any, values: Any) -> list[float]:
    """Mean over all replicas of `values`, fp32 [replicas of this process, steps]."""
    first = min(_ids(strategy))
    shared = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(values[context.replica_id_in_sync_group - first])
    )

    def reduced(value: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, value)

    @tf.function(autograph=False)  # type: ignore[untyped-decorator] # TensorFlow publishes no types
    def reduce() -> Any:
        return strategy.run(reduced, args=(shared,))

    means: list[float] = strategy.experimental_local_results(reduce())[0].numpy().tolist()
    return means


def _ids(strategy: Any) -> list[int]:
    """Global numbers of this process's replicas."""
    replica_ids: list[int] = []

    def note(context: Any) -> Any:
        replica_ids.append(context.replica_id_in_sync_group)
        return tf.constant(0)

    strategy.experimental_distribute_values_from_function(note)
    return replica_ids
