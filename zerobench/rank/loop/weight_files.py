"""Files from which a trial's weights are loaded: written before anything is measured, removed once they are read.

They have the values that fill_weights would draw, so that a loaded model trains like a drawn one; in a world without
values the files have none either.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from zerobench.config.trial.trial import TrialSpec
from zerobench.rank.ledger.host import mapped_bytes
from zerobench.rank.ledger.storages import StorageCounter
from zerobench.rank.training.loading import write_checkpoint
from zerobench.rank.training.model import DTYPES
from zerobench.rank.training.weights import draw, spread
from zerobench.rank.worlds.base import World
from zerobench.records.records import RankRecord


class WeightFiles:
    """Weight files of one trial; does nothing if its weights are drawn."""

    def __init__(self, trial: TrialSpec, folder: Path, world: World) -> None:
        self._trial, self._folder, self._world = trial, folder, world

    def write(self, rank: int, device: torch.device) -> None:
        """Write the files on the first rank, or on one that is alone; all ranks wait for it."""
        if not self._trial.is_loaded:
            return
        if rank == 0 or self._world.is_alone:
            hf_config, dtype = self._trial.model.hf_config, DTYPES[self._trial.precision]
            write_checkpoint(self._folder, hf_config, dtype, self._values(device) if self._world.trains else None)
        _wait_for_all()

    @contextmanager
    def reading(self, record: RankRecord, counter: StorageCounter) -> Iterator[None]:
        """Bracket the reading of the files: records how much of them was mapped, then removes them."""
        if not self._trial.is_loaded:
            yield
            return
        with self._world.reads_files(counter):
            yield
            record.mapped_peak_bytes = mapped_bytes(self._folder) if self._world.trains else None
        _wait_for_all()
        shutil.rmtree(self._folder, ignore_errors=True)  # all ranks try

    def _values(self, device: torch.device) -> Callable[[str, torch.Size], torch.Tensor]:
        from transformers import AutoConfig

        std, layers = spread(AutoConfig.for_model(**self._trial.model.hf_config))
        seed, dtype = self._trial.hyperparameters.seed, DTYPES[self._trial.precision]

        def value(name: str, shape: torch.Size) -> torch.Tensor:
            whole = torch.empty(shape, dtype=dtype, device=device)
            draw(whole, name, seed, std, layers, self._world.generator)
            return whole

        return value


def _wait_for_all() -> None:
    if dist.is_initialized():
        dist.barrier()
