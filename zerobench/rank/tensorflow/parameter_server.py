"""tf.distribute.ParameterServerStrategy, synchronous: a server holds all variables, workers compute gradients on them.

Rank 0 is the server, TensorFlow's task `ps`, and in the same process its coordinator, the task `chief`, which traces
the graphs and says who runs what and when; the other ranks are the tasks `worker`. (TensorFlow's guide to the strategy
runs servers within the coordinator's process as well, "In-process cluster".) So rank 0 is here what it is under the
strategy `parameter-server`: it trains on nothing, and its memory is the server's, the coordinator's graphs included.

By itself the strategy is asynchronous: each worker applies its own gradients when it has them. Here a step is one
update. Each worker computes the mean gradient of its share of the global batch, on the weights that it reads from the
server, and adds it, divided by the number of workers, to accumulators on the server (as tf.compat.v1.train
.SyncReplicasOptimizer did; Chen et al., "Revisiting Distributed Synchronous SGD", arXiv 1604.00981). When all have done
so the coordinator clips the sum, updates once, and sets the accumulators to zero. The adds are locked
(tensorflow/core/kernels/resource_variable_ops.cc, AssignUpdateVariableOp) and come in any order, so two runs may differ
in the last bit from three workers on.

Shares are handed out with the closures, so that every sample is trained once whichever worker is free to take it.
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
from zerobench.rank.tensorflow.launcher import KEY_VARIABLE, PORT_VARIABLE
from zerobench.rank.tensorflow.link import CoordinatorsEnd, WorkersEnd
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
    """Rank 0: the variables, and the coordinator."""

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
        """Variables on the server, an accumulator for each parameter, and the two graphs of a step."""
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
        """Each worker's share of the micro-batches, still here: they are sent with the closure. All wait for all."""
        self.optimizer.learning_rate.assign(learning_rate)
        size = self.trial.micro_batch_size
        shares = [
            tf.constant(samples_of(tokens, worker, self._num_workers, size)) for worker in range(self._num_workers)
        ]
        self.barrier()
        return shares

    def step(self, placed: Any) -> list[float]:
        """All gradients, then one update; the workers are told the losses."""
        scheduled = [self._coordinator.schedule(self._push, args=(share,)) for share in placed]
        self._coordinator.join()
        self._update()
        losses = [float(pending.fetch()) for pending in scheduled]
        self._line.gather()
        self._line.tell(json.dumps(losses).encode())
        return losses

    def mean(self, losses: Sequence[Sequence[float]]) -> list[float]:
        """All losses are known here."""
        return _means(losses)

    def barrier(self) -> None:
        """All workers, then all go on."""
        self._line.gather()
        self._line.tell()

    def named_bytes(self) -> dict[Category, int]:
        """The variables, and the accumulators."""
        sums = sum(int(variable.shape.num_elements()) * variable.dtype.size for variable in self._sums)
        return super().named_bytes() | {Category.GRADIENTS: sums}

    def effective_config(self) -> dict[str, Any]:
        """The settings, and who does what."""
        config = super().effective_config()
        config["tensorflow"] |= {"role": "server and coordinator", "workers": self._num_workers}
        return config


class Worker(Engine):
    """Every other rank: it serves what the coordinator schedules."""

    notes = (WORKER_NOTE,)

    def __init__(self, trial: TrialSpec) -> None:
        super().__init__(trial)
        self._server, self._cluster = _serve()
        self._line = WorkersEnd(*_line_of(os.environ))

    def build(self, start: Start) -> None:  # noqa: ARG002 -- Engine's signature
        """Nothing: all variables are the server's, which has built them when this ends."""
        self.barrier()

    def place(self, tokens: NDArray[Any], learning_rate: float) -> None:  # noqa: ARG002 -- as above
        """Nothing: the share comes with the closure. All wait for all."""
        self.barrier()

    def step(self, placed: Any) -> list[float]:  # noqa: ARG002 -- as above
        """Serve until the step is over; what the losses were."""
        losses: list[float] = json.loads(self._line.wait())
        return losses

    def mean(self, losses: Sequence[Sequence[float]]) -> list[float]:
        """As the coordinator told them."""
        return _means(losses)

    def barrier(self) -> None:
        """The coordinator waits for all."""
        self._line.wait()

    def save(self, folder: Path) -> None:
        """Nothing: the server has all of it."""

    def load(self, folder: Path) -> None:
        pass

    @property
    def samples_per_step(self) -> int:
        return micro_batches_per_step(self.trial, rank=1) * self.trial.micro_batch_size

    def effective_config(self) -> dict[str, Any]:
        """Who this is."""
        return {"tensorflow": {"strategy": "ParameterServerStrategyV2", "role": "worker"}}


def _serve() -> tuple[Any, Any]:
    """TensorFlow's server for the task of TF_CONFIG in this process, and the cluster; before the runtime starts."""
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
    """Port and key, as the launcher told them."""
    return int(environ[PORT_VARIABLE]), environ[KEY_VARIABLE].encode()


def _means(losses: Sequence[Sequence[float]]) -> list[float]:
    return [sum(loss) / len(loss) for loss in losses]
