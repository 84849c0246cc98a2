"""Engine of one process of a TensorFlow trial, under any of tf.distribute's strategies, and its optimizers.

A process holds identical replicas (replicated.py), or is the server or a worker of a parameter server
(parameter_server.py). The loop around a step (rank.py) is the same for all of them.

The optimizers are Keras' with the behaviour of the other frameworks: clipping after the all-reduce, and torch's
epsilon. Keras clips each replica's gradients before they are summed (base_optimizer.py, apply), which is not the norm
of the mean gradient that every other strategy clips. So clipping is done where Keras sums: in the method that all-
reduces.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from numpy.typing import NDArray

from zerobench.common.vocabulary import Category
from zerobench.config.trial.optimizers import OPTIMIZERS
from zerobench.config.trial.trial import HyperparameterSpec, TrialSpec
from zerobench.rank.tensorflow.memory import Counter, ProcessGrowth, variable_bytes
from zerobench.rank.tensorflow.model import CausalModel, make_model
from zerobench.rank.tensorflow.start import Start

_NORM_EPSILON = 1e-6
"""Added to the norm in the denominator, as in torch/nn/utils/clip_grad.py."""


class _ClipsTheMean:
    """Clips gradients after their sum; each replica passes its share of the mean."""

    largest_norm = 0.0

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> list[tuple[Any, Any]]:
        summed = super()._all_reduce_sum_gradients(grads_and_vars)  # type: ignore[misc] # of the Keras class beside it
        gradients = [gradient for gradient, _ in summed]
        if self.largest_norm:
            scale = tf.minimum(1.0, self.largest_norm / (tf.linalg.global_norm(gradients) + _NORM_EPSILON))
            gradients = [gradient * scale for gradient in gradients]
        return [(gradient, variable) for gradient, (_, variable) in zip(gradients, summed, strict=True)]


class ClippingSgd(_ClipsTheMean, keras.optimizers.SGD):  # type: ignore[misc] # Keras publishes no types
    """SGD without momentum."""


class ClippingAdamW(_ClipsTheMean, keras.optimizers.AdamW):  # type: ignore[misc] # as above
    """AdamW with torch's epsilon."""

    @property
    def epsilon(self) -> Any:
        """Term added to the root of the uncorrected second moment in the current step.

        Keras adds epsilon to the uncorrected second moment (Kingma and Ba, arXiv 1412.6980, the note that ends section
        2); torch corrects first (torch/optim/adam.py). Both are equal with epsilon times sqrt(1 - beta2^t).
        """
        step = tf.cast(self.iterations, tf.float32) + 1.0
        return self._epsilon * tf.sqrt(1.0 - tf.pow(tf.constant(self.beta_2, tf.float32), step))

    @epsilon.setter
    def epsilon(self, value: float) -> None:
        self._epsilon = value


def _sgd(h: HyperparameterSpec) -> Any:
    return ClippingSgd(h.learning_rate, weight_decay=h.weight_decay)


def _adamw(h: HyperparameterSpec) -> Any:
    return ClippingAdamW(
        h.learning_rate,
        weight_decay=h.weight_decay,
        beta_1=h.adam_beta1,
        beta_2=h.adam_beta2,
        epsilon=h.adam_epsilon,
    )


_FAMILIES = {"sgd": _sgd, "adamw": _adamw}
"""By OptimizerInfo.family; other optimizers refuse the strategy."""


def make_optimizer(trial: TrialSpec) -> Any:
    """Make the trial's optimizer, not built; its learning rate is a variable that each step sets."""
    optimizer = _FAMILIES[OPTIMIZERS[trial.optimizer].family](trial.hyperparameters)
    optimizer.largest_norm = trial.hyperparameters.gradient_clipping
    return optimizer


_STATES = "states"
"""Prefix of a checkpoint's files."""


class Engine(ABC):
    """One process's part in the training. Created before any other use of TensorFlow, since it joins the others."""

    notes: Sequence[str] = ()
    """Notes for readers of this process's figures."""

    def __init__(self, trial: TrialSpec) -> None:
        self.trial = trial

    @abstractmethod
    def build(self, start: Start) -> None:
        """Build the variables of this process, with their initial values."""

    @abstractmethod
    def place(self, tokens: NDArray[Any], learning_rate: float) -> Any:
        """Place a step's samples, int64 [global_batch_size, sequence_length], on their devices."""

    @abstractmethod
    def step(self, placed: Any) -> list[float]:
        """Take one optimizer step; returns the mean loss of each replica known to this process."""

    @abstractmethod
    def mean(self, losses: Sequence[Sequence[float]]) -> list[float]:
        """Mean over all replicas of each step's losses."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait for all processes."""

    @property
    def samples_per_step(self) -> int:
        """Sequences that this process trains in a step."""
        return 0

    def counter(self) -> Counter:
        """Counter of the bytes on this process's device from now on; created before the model is built."""
        return ProcessGrowth()

    def named_bytes(self) -> dict[Category, int]:
        """Bytes of this process's variables, by category."""
        return {}

    def learning_rate(self) -> float | None:
        """Learning rate of the last step, read back from the optimizer; None without one."""
        return None

    def effective_config(self) -> dict[str, Any]:
        """Configuration that TensorFlow reports."""
        return {}

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write this process's part of the training state into `folder`; called in all processes."""

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Continue from the files of `save`, once `build` has run; called in all processes."""


class Holder(Engine):
    """A process with variables of the model and its optimizer."""

    strategy: Any

    def build(self, start: Start) -> None:
        """Build model, values and optimizer under the strategy."""
        with self.strategy.scope():
            self.model: CausalModel = make_model(start)
            self.model.set_values(start)
            self.optimizer = make_optimizer(self.trial)
            self.optimizer.build(self.model.trainable_variables)

    def named_bytes(self) -> dict[Category, int]:
        """Bytes of one copy of the variables."""
        return variable_bytes(self.model, self.optimizer)

    def learning_rate(self) -> float | None:
        """Value of the optimizer's variable."""
        return float(tf.convert_to_tensor(self.optimizer.learning_rate))

    def effective_config(self) -> dict[str, Any]:
        """Settings of the optimizer and of the strategy."""
        optimizer = {"optimizer": type(self.optimizer).__name__, "gradient_clipping": self.optimizer.largest_norm}
        for name in ("weight_decay", "beta_1", "beta_2"):
            optimizer[name] = getattr(self.optimizer, name, None)
        threads = tf.config.threading.get_intra_op_parallelism_threads()
        return {
            "optimizer": optimizer,
            "tensorflow": {"strategy": type(self.strategy).__name__, "intra_op_threads": threads},
        }

    def save(self, folder: Path) -> None:
        """Save all variables on one process; every other has the same, or none."""
        if self._saves:
            self._states().write(str(folder / _STATES))

    def load(self, folder: Path) -> None:
        """Load all variables of the files, with none left over."""
        self._states().read(str(folder / _STATES)).assert_consumed()

    @property
    def _saves(self) -> bool:
        return True

    def _states(self) -> Any:
        """TensorFlow checkpoint of the variables by name: tensors and a protobuf index, no pickle
        (tensorflow/python/checkpoint/checkpoint.py, Checkpoint.write).
        """
        variables: Mapping[str, Any] = {
            **{f"model/{variable.path}": variable.value for variable in self.model.trainable_variables},
            **{f"optimizer/{variable.path}": variable.value for variable in self.optimizer.variables},
        }
        return tf.train.Checkpoint(states=dict(variables))


def accumulated(model: CausalModel, micro_batches: Any, num_shares: int) -> tuple[Any, list[Any]]:
    """Mean loss of micro-batches, int64 [micro_batches, micro_batch_size, sequence_length], and their contribution to
    the mean gradient of `num_shares` equal shares of the batch. Runs in a graph.
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
