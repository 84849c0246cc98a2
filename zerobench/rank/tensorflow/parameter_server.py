"""tf.distribute.ParameterServerStrategy, synchronous: a server holds all variables, workers compute gradients on them.

Rank 0 is the server, TensorFlow's task `ps`, and in the same process its coordinator, the task `chief`, which traces
the graphs and schedules the work; the other ranks are the tasks `worker`. (TensorFlow's guide to the strategy also runs
servers within the coordinator's process, "In-process cluster".) So rank 0 has the same role as under the strategy
`parameter-server`: it has no data, and its memory is the server's, including the coordinator's graphs.

The strategy itself is asynchronous: each worker applies its gradients as soon as it has them. Here a step is one
update. Each worker computes the mean gradient of its share of the global batch, with weights read from the server, and
adds it, divided by the number of workers, to accumulators on the server (as tf.compat.v1.train.SyncReplicasOptimizer
did; Chen et al., "Revisiting Distributed Synchronous SGD", arXiv 1604.00981). Then the coordinator clips the sum,
updates once, and resets the accumulators. The adds are locked (tensorflow/core/kernels/resource_variable_ops.cc,
AssignUpdateVariableOp) and come in any order, so two runs may differ in the last bit with three or more workers.

Shares travel with the closures, so that every sample is trained once, whichever worker takes it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from zerobench.common.vocabulary import Category
from zerobench.config.derived.batch import micro_batches_per_step
from zerobench.config.derived.roles import num_workers
from zerobench.config.trial.trial import TrialSpec
from zerobench.rank.tensorflow.engine import Engine, Holder, accumulated
from zerobench.rank.tensorflow.launcher import KEY_VARIABLE, PORT_VARIABLE, CoordinatorsEnd, WorkersEnd
from zerobench.rank.tensorflow.start import Start, samples_of

_ON_SERVER = "/job:ps/task:0/device:CPU:0"

SERVER_NOTE = (
    "the server process is also the coordinator: its graphs are in unattributed; gradients are the "
    "accumulators that the workers add to"
)
WORKER_NOTE = (
    "a worker of TensorFlow's parameter server has no variables: its weights for a step, gradients and "
    "activations are inside TensorFlow's graph, in unattributed"
)


class Server(Holder):
    """Rank 0: server of the variables, and coordinator."""

    notes = (SERVER_NOTE,)

    def __init__(self, trial: TrialSpec) -> None:
        super().__init__(trial)
        self._num_workers = num_workers(trial)
        self._server, cluster = _serve()
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
        self.strategy = tf.distribute.ParameterServerStrategy(resolver)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)
        self._line = CoordinatorsEnd(*_line_of(os.environ), self._num_workers)

    def build(self, start: Start) -> None:
        """Build variables on the server, an accumulator for each parameter, and the two graphs of a step."""
        super().build(start)
        with self.strategy.scope():
            self._sums = [
                tf.Variable(tf.zeros(variable.shape), trainable=False, name=f"sum_{number}")
                for number, variable in enumerate(self.model.trainable_variables)
            ]
        self._make_graphs()
        self.barrier()

    def _make_graphs(self) -> None:
        model, optimizer, sums, shares = self.model, self.optimizer, self._sums, self._num_workers

        @tf.function(autograph=False)  # type: ignore[untyped-decorator] # TensorFlow publishes no types
        def push(micro_batches: Any) -> Any:
            loss, gradients = accumulated(model, micro_batches, shares)
            for total, gradient in zip(sums, gradients, strict=True):
                total.assign_add(gradient)
            return loss

        @tf.function(autograph=False)  # type: ignore[untyped-decorator] # as above
        def update() -> None:
            with tf.device(_ON_SERVER):
                optimizer.apply([tf.convert_to_tensor(total) for total in sums], model.trainable_variables)
                for total in sums:
                    total.assign(tf.zeros_like(total))

        self._push, self._update = push, update

    def place(self, tokens: NDArray[Any], learning_rate: float) -> Any:
        """Split the micro-batches into one share for each worker, sent later with the closure; then a barrier."""
        self.optimizer.learning_rate.assign(learning_rate)
        size = self.trial.micro_batch_size
        shares = [
            tf.constant(samples_of(tokens, worker, self._num_workers, size)) for worker in range(self._num_workers)
        ]
        self.barrier()
        return shares

    def step(self, placed: Any) -> list[float]:
        """Collect all gradients, update once, and send the losses to the workers."""
        scheduled = [self._coordinator.schedule(self._push, args=(share,)) for share in placed]
        self._coordinator.join()
        self._update()
        losses = [float(pending.fetch()) for pending in scheduled]
        self._line.gather()
        self._line.tell(json.dumps(losses).encode())
        return losses

    def mean(self, losses: Sequence[Sequence[float]]) -> list[float]:
        """Mean of the losses, all of which are known here."""
        return _means(losses)

    def barrier(self) -> None:
        """Wait for all workers, then release them."""
        self._line.gather()
        self._line.tell()

    def named_bytes(self) -> dict[Category, int]:
        """Bytes of the variables and the accumulators."""
        sums = sum(int(variable.shape.num_elements()) * variable.dtype.size for variable in self._sums)
        return super().named_bytes() | {Category.GRADIENTS: sums}

    def effective_config(self) -> dict[str, Any]:
        """Settings, and the role of this process."""
        config = super().effective_config()
        config["tensorflow"] |= {"role": "server and coordinator", "workers": self._num_workers}
        return config


class Worker(Engine):
    """Every other rank: runs work that the coordinator schedules."""

    notes = (WORKER_NOTE,)

    def __init__(self, trial: TrialSpec) -> None:
        super().__init__(trial)
        self._server, self._cluster = _serve()
        self._line = WorkersEnd(*_line_of(os.environ))

    def build(self, start: Start) -> None:  # noqa: ARG002 -- Engine's signature
        """Wait until the server has built all variables."""
        self.barrier()

    def place(self, tokens: NDArray[Any], learning_rate: float) -> None:  # noqa: ARG002 -- as above
        """Wait for all processes; the share comes with the closure."""
        self.barrier()

    def step(self, placed: Any) -> list[float]:  # noqa: ARG002 -- as above
        """Serve until the step is over; returns its losses."""
        losses: list[float] = json.loads(self._line.wait())
        return losses

    def mean(self, losses: Sequence[Sequence[float]]) -> list[float]:
        """Mean of the losses that the coordinator sent."""
        return _means(losses)

    def barrier(self) -> None:
        """Wait for the coordinator, which waits for all."""
        self._line.wait()

    def save(self, folder: Path) -> None:
        """Do nothing: the server saves everything."""

    def load(self, folder: Path) -> None:
        pass

    @property
    def samples_per_step(self) -> int:
        return micro_batches_per_step(self.trial, rank=1) * self.trial.micro_batch_size

    def effective_config(self) -> dict[str, Any]:
        """Role of this process."""
        return {"tensorflow": {"strategy": "ParameterServerStrategyV2", "role": "worker"}}


def _serve() -> tuple[Any, Any]:
    """Start TensorFlow's server for the task of TF_CONFIG in this process, before the runtime; returns it and the
    cluster.
    """
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    config = json.loads(os.environ["TF_CONFIG"])
    cluster, task = tf.train.ClusterSpec(config["cluster"]), config["task"]
    settings = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=threads)
    server = tf.distribute.Server(
        cluster, job_name=task["type"], task_index=task["index"], protocol="grpc", config=settings
    )
    return server, cluster


def _line_of(environ: Mapping[str, str]) -> tuple[int, bytes]:
    """Port and key from the launcher."""
    return int(environ[PORT_VARIABLE]), environ[KEY_VARIABLE].encode()


def _means(losses: Sequence[Sequence[float]]) -> list[float]:
    return [sum(loss) / len(loss) for loss in losses]
