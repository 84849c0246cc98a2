"""Quantities that a frontier search may grow: the micro batch, the sequence length, or the depth of the model."""

from collections.abc import Callable
from dataclasses import dataclass

from zerobench.common.errors import UserError, unknown_choice
from zerobench.config.models.architecture import SPELLINGS, dimensions, max_positions, position_limit
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import TrialSpec

SEQUENCE_UNIT = 128
"""Step of sequence lengths in tokens, the tile size of kernels."""

MOST_SEQUENCES = 2**16
MOST_TOKENS = 2**24
MOST_DEPTH = 16
"""Largest multiple of the model's depth to try: prediction time grows with every layer."""


@dataclass(frozen=True)
class FrontierAxis:
    """A quantity that grows until memory ends; searches count it in steps of `unit`."""

    name: str
    unit: int
    words: str
    """Unit of the figures, for headings."""
    value: Callable[[TrialSpec], int]
    """Value of a trial."""
    most: Callable[[TrialSpec], int]
    """Largest value to try for a trial."""
    grown: Callable[[TrialSpec, int], TrialSpec]
    """Returns the trial with another value."""

    def start(self, trial: TrialSpec) -> int:
        """First step to try: the trial's own value."""
        return max(1, min(self.value(trial) // self.unit, self.last(trial)))

    def last(self, trial: TrialSpec) -> int:
        return max(1, self.most(trial) // self.unit)

    def trial_at(self, trial: TrialSpec, step: int) -> TrialSpec:
        return self.grown(trial, step * self.unit)


def frontier_axis(name: str) -> FrontierAxis:
    """Find the axis called `name`. Raises UserError with the choices."""
    if name not in FRONTIERS:
        raise unknown_choice("--frontier", name, FRONTIERS)
    return FRONTIERS[name]


def _set_sequence_length(trial: TrialSpec, value: int) -> TrialSpec:
    # Rotary positions are computed, so a model takes as many as memory allows; its config is extended to match
    model = trial.model
    positions = max_positions(model)
    if positions is not None and value > positions:
        config = model.hf_config | {"max_position_embeddings": value}
        model = model.model_copy(update={"hf_config": config})
    return trial.model_copy(update={"sequence_length": value, "model": model})


def _num_layers(trial: TrialSpec) -> int:
    layers = dimensions(trial.model).num_layers
    if layers is None:
        raise UserError(f"--frontier: model: number of layers unknown for {trial.model.name}")
    return layers


def set_num_layers(model: ModelSpec, num_layers: int) -> ModelSpec:
    """Change the number of layers, by the config's own key; lists with one entry per layer follow."""
    config = dict(model.hf_config)
    spellings = SPELLINGS["num_layers"]
    key = next((key for key in spellings if key in config), spellings[0])
    before = dimensions(model).num_layers
    for name, value in config.items():
        if isinstance(value, list) and value and len(value) == before:
            config[name] = (value * -(-num_layers // len(value)))[:num_layers]
    config[key] = num_layers
    return model.model_copy(update={"name": f"{model.name}-{num_layers}-layers", "hf_config": config})


FRONTIERS: dict[str, FrontierAxis] = {
    "model": FrontierAxis(
        *("model", 1, "layers", _num_layers),
        most=lambda trial: MOST_DEPTH * _num_layers(trial),
        grown=lambda trial, value: trial.model_copy(update={"model": set_num_layers(trial.model, value)}),
    ),
    "micro-batch": FrontierAxis(
        *("micro-batch", 1, "sequences per GPU", lambda trial: trial.micro_batch_size),
        most=lambda _: MOST_SEQUENCES,
        grown=lambda trial, value: trial.model_copy(update={"micro_batch_size": value}),
    ),
    "sequence-length": FrontierAxis(
        *("sequence-length", SEQUENCE_UNIT, "tokens per sequence", lambda trial: trial.sequence_length),
        most=lambda trial: position_limit(trial.model) or MOST_TOKENS,
        grown=_set_sequence_length,
    ),
}
"""By the name that `--frontier` takes."""
