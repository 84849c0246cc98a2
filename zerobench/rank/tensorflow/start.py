"""Reads the files of zerobench.rank.loop.start_files: weights, tokens and learning rates, as NumPy arrays."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerobench.config.trial.model import Component


@dataclass(frozen=True)
class Start:
    """Starting point of every rank."""

    folder: Path
    config: dict[str, Any]
    """Complete config of the model from transformers."""
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    components: dict[str, Component]
    """Component of each parameter, by name."""
    learning_rates: tuple[float, ...]

    def parameter(self, name: str) -> NDArray[np.float32]:
        """Initial values of a parameter, mapped from disk."""
        return _load(self.folder / "parameters" / f"{self.parameters.index(name)}.npy")

    def buffer(self, name: str) -> NDArray[np.float32]:
        """Values of a registered buffer."""
        return _load(self.folder / "buffers" / f"{self.buffers.index(name)}.npy")

    def tokens(self) -> NDArray[np.int64]:
        """All samples, int64 [steps, global_batch_size, sequence_length], mapped from disk."""
        return _load(self.folder / "tokens.npy")


def read_start(folder: Path) -> Start:
    """Read `folder`. Raises OSError, ValueError or KeyError if it is incomplete."""
    document = json.loads((folder / "start.json").read_bytes())
    return Start(
        folder=folder,
        config=document["config"],
        parameters=tuple(document["parameters"]),
        buffers=tuple(document["buffers"]),
        components={name: Component(value) for name, value in document["components"].items()},
        learning_rates=tuple(document["learning_rates"]),
    )


def samples_of(tokens: NDArray[np.int64], replica: int, num_replicas: int, micro_batch_size: int) -> NDArray[np.int64]:
    """One step's samples of `replica`, as micro-batches: int64 [micro_batches, micro_batch_size, sequence_length].

    Sample i goes to replica i mod num_replicas, as in torch's DistributedSampler without shuffling.
    """
    return tokens[replica::num_replicas].reshape(-1, micro_batch_size, tokens.shape[-1])


def _load(path: Path) -> NDArray[Any]:
    array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return array
