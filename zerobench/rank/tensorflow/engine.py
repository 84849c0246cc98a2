"""What one process of a TensorFlow trial does in its trial, whichever of tf.distribute's strategies it is under.

A process either holds replicas that are all alike (replicated.py), or it is the server of a parameter server, or one of
its workers (parameter_server.py). The loop around a step (rank.py) is the same for each of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from zerobench.common.vocabulary import Category
from zerobench.config.trial.trial import TrialSpec
from zerobench.rank.tensorflow.memory import Counter, ProcessGrowth, variable_bytes
from zerobench.rank.tensorflow.model import CausalModel, make_model
from zerobench.rank.tensorflow.optimizers import make_optimizer
from zerobench.rank.tensorflow.start import Start

_STATES = "states"
"""The name that the files of a checkpoint begin with."""


class Engine(ABC):
    """One process's part in the training. Made before anything else of TensorFlow runs: it joins the others."""

    notes: Sequence[str] = ()
    """What a reader of this process's figures must know of them."""

    def __init__(self, trial: TrialSpec) -> None:
        self.trial = trial

    @abstractmethod
    def build(self, start: Start) -> None:
        """Build what this process holds, with its initial values."""

    @abstractmethod
    def place(self, tokens: NDArray[Any], learning_rate: float) -> Any:
        """Bring a step's samples, int64 [global_batch_size, sequence_length], to where they are trained."""

    @abstractmethod
    def step(self, placed: Any) -> list[float]:
        """One optimizer step; the mean loss of each replica that this process knows of."""

    @abstractmethod
    def mean(self, losses: Sequence[Sequence[float]]) -> list[float]:
        """The mean over all replicas of the losses of each step that this process has been told."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait until all processes have come here."""

    @property
    def samples_per_step(self) -> int:
        """Sequences that this process trains in a step."""
        return 0

    def counter(self) -> Counter:
        """What counts the bytes of this process's device, from now on; made before the model is built."""
        return ProcessGrowth()

    def named_bytes(self) -> dict[Category, int]:
        """Bytes of what this process holds and can name."""
        return {}

    def learning_rate(self) -> float | None:
        """What the last step updated with, read back from the optimizer; None where there is none."""
        return None

    def effective_config(self) -> dict[str, Any]:
        """What TensorFlow says it runs with."""
        return {}

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write into `folder` what of this process's training needs to go on; called in all processes."""

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote, once `build` has run; called in all processes."""


class Holder(Engine):
    """A process that holds variables of the model and its optimizer."""

    strategy: Any

    def build(self, start: Start) -> None:
        """Model, values and optimizer under the strategy."""
        with self.strategy.scope():
            self.model: CausalModel = make_model(start)
            self.model.set_values(start)
            self.optimizer = make_optimizer(self.trial)
            self.optimizer.build(self.model.trainable_variables)

    def named_bytes(self) -> dict[Category, int]:
        """The variables of one copy."""
        return variable_bytes(self.model, self.optimizer)

    def learning_rate(self) -> float | None:
        """The optimizer's own variable."""
        return float(tf.convert_to_tensor(self.optimizer.learning_rate))

    def effective_config(self) -> dict[str, Any]:
        """The optimizer's settings, and the strategy's."""
        optimizer = {"optimizer": type(self.optimizer).__name__, "gradient_clipping": self.optimizer.largest_norm}
        for name in ("weight_decay", "beta_1", "beta_2"):
            optimizer[name] = getattr(self.optimizer, name, None)
        threads = tf.config.threading.get_intra_op_parallelism_threads()
        return {
            "optimizer": optimizer,
            "tensorflow": {"strategy": type(self.strategy).__name__, "intra_op_threads": threads},
        }

    def save(self, folder: Path) -> None:
        """All variables, by one process; every other has the same, or none."""
        if self._saves:
            self._states().write(str(folder / _STATES))

    def load(self, folder: Path) -> None:
        """All variables of the files, none left over, into those that are there."""
        self._states().read(str(folder / _STATES)).assert_consumed()

    @property
    def _saves(self) -> bool:
        return True

    def _states(self) -> Any:
        """TensorFlow's own checkpoint of the variables by name: tensors and an index in protobuf, no pickle
        (tensorflow/python/checkpoint/checkpoint.py, Checkpoint.write).
        """
        variables: Mapping[str, Any] = {
            **{f"model/{variable.path}": variable.value for variable in self.model.trainable_variables},
            **{f"optimizer/{variable.path}": variable.value for variable in self.optimizer.variables},
        }
        return tf.train.Checkpoint(states=dict(variables))


def accumulated(model: CausalModel, micro_batches: Any, num_shares: int) -> tuple[Any, list[Any]]:
    """The mean loss of micro-batches, int64 [micro_batches, micro_batch_size, sequence_length], and what they add to
    the mean gradient of `num_shares` shares of the batch as large as this one. In a graph.
    """
    variables = [variable.value for variable in model.trainable_variables]
    number = int(micro_batches.shape[0])
    loss, summed = _gradients(model, variables, micro_batches[0])
    for index in range(1, number):
        more, gradients = _gradients(model, variables, micro_batches[index])
        loss, summed = loss + more, [partial + other for partial, other in zip(summed, gradients, strict=True)]
    part = 1.0 / (number * num_shares)
    return loss / number, [gradient * part for gradient in summed]


def _gradients(model: CausalModel, variables: Sequence[Any], tokens: Any) -> tuple[Any, list[Any]]:
    with tf.GradientTape() as tape:
        loss = model.loss_of(tokens)
    return loss, [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, variables)]
