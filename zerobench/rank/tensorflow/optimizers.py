"""Keras' optimizers with what the other frameworks' do: clipping after the all-reduce, and torch's epsilon.

Keras clips each replica's gradients before they are summed (base_optimizer.py, apply), which is not the norm of the
mean gradient that every other strategy clips. So the clip is done where Keras sums: in the one method that all-reduces.

Keras' Adam adds epsilon to the root of the uncorrected second moment (Kingma and Ba, arXiv 1412.6980, the note that
ends section 2); torch corrects first (torch/optim/adam.py). Both are equal with epsilon times sqrt(1 - beta2^t).
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from zerobench.config.trial.optimizers import OPTIMIZERS
from zerobench.config.trial.trial import HyperparameterSpec, TrialSpec

_NORM_EPSILON = 1e-6
"""Added to the norm that divides, as in torch/nn/utils/clip_grad.py."""


class _ClipsTheMean:
    """An optimizer whose gradients, handed in as each replica's share of the mean, are clipped once they are summed."""

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
        """What is added to the root of the uncorrected second moment in the step that is under way."""
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
"""By OptimizerInfo.family; the others' entries refuse the strategy."""


def make_optimizer(trial: TrialSpec) -> Any:
    """The trial's optimizer, not built; its learning rate is a variable that each step sets."""
    optimizer = _FAMILIES[OPTIMIZERS[trial.optimizer].family](trial.hyperparameters)
    optimizer.largest_norm = trial.hyperparameters.gradient_clipping
    return optimizer
