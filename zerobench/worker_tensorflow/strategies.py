"""tf.distribute's strategies, and one training step under any of them.

- mirrored: one process, a logical CPU device for each replica (tf.distribute.MirroredStrategy).
- multi-worker-mirrored: a process for each replica, which find each other by TF_CONFIG; collectives are TensorFlow's
  ring over gRPC (tf.distribute.MultiWorkerMirroredStrategy).

Under both every replica holds all model states, and a step is one graph: each replica accumulates the gradients of its
micro-batches, they are summed over all replicas, clipped, and applied on each.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from zerobench.spec.trial import TfStrategy, TrialSpec


def make_strategy(trial: TrialSpec) -> Any:
    """The trial's strategy; it joins the other processes, so nothing of TensorFlow may have run before."""
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    if trial.tf_strategy is TfStrategy.MIRRORED:
        tf.config.threading.set_intra_op_parallelism_threads(threads * trial.world_size)
        [cpu] = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * trial.world_size)
        return tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(trial.world_size)])
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    experimental = tf.distribute.experimental
    options = experimental.CommunicationOptions(implementation=experimental.CommunicationImplementation.RING)
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def make_step(strategy: Any, model: Any, optimizer: Any) -> Callable[[Any], Any]:
    """A graph that trains on each replica's micro-batches, int64 [micro_batches, micro_batch_size, sequence_length].

    Returns each replica's mean loss.
    """
    variables = [variable.value for variable in model.trainable_variables]

    def gradients_of(tokens: Any) -> tuple[Any, list[Any]]:
        with tf.GradientTape() as tape:
            loss = model.loss_of(tokens)
        return loss, [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, variables)]

    def on_replica(micro_batches: Any) -> Any:
        number = micro_batches.shape[0]
        loss, summed = gradients_of(micro_batches[0])
        for index in range(1, number):
            more, gradients = gradients_of(micro_batches[index])
            loss, summed = loss + more, [one + other for one, other in zip(summed, gradients, strict=True)]
        share = 1.0 / (number * strategy.num_replicas_in_sync)
        optimizer.apply([gradient * share for gradient in summed], model.trainable_variables)
        return loss / number

    @tf.function  # type: ignore[untyped-decorator] # TensorFlow publishes no types
    def step(micro_batches: Any) -> Any:
        return strategy.run(on_replica, args=(micro_batches,))

    return step  # type: ignore[no-any-return] # as above


def mean_over_replicas(strategy: Any, values: Any) -> list[float]:
    """The mean over all replicas of what each has: `values`, fp32 [replicas of this process, steps]."""
    first = min(_ids(strategy))
    shared = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(values[context.replica_id_in_sync_group - first])
    )

    def reduced(own: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, own)

    @tf.function  # type: ignore[untyped-decorator] # TensorFlow publishes no types
    def reduce() -> Any:
        return strategy.run(reduced, args=(shared,))

    means: list[float] = strategy.experimental_local_results(reduce())[0].numpy().tolist()
    return means


def _ids(strategy: Any) -> list[int]:
    """The replicas of this process, by their number among all."""
    found: list[int] = []

    def note(context: Any) -> Any:
        found.append(context.replica_id_in_sync_group)
        return tf.constant(0)

    strategy.experimental_distribute_values_from_function(note)
    return found
