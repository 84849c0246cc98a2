"""Tokens from a seeded synthetic stream, a memory-mapped token file, or a text file; ranks get disjoint samples.

torch's DistributedSampler without shuffling assigns sample i to rank i mod world_size, so one optimizer step has the
same set of samples for every world size with the same global batch, and a single process gets them all. Ranks that
divide the model instead of the batch get the same samples (zerobench.config.derived.batch).
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from zerobench.config.derived.batch import data_parallel_size, micro_batches_read, share_of
from zerobench.config.trial.trial import DataKind, DataSpec, TrialSpec

_MODULUS = 251
_FACTOR = 6
_INCREMENT = 7


class SyntheticTokens(Dataset[torch.Tensor]):
    """A linear congruential stream in a small vocabulary: cheap, and learnable, so that a wrong update is visible."""

    def __init__(self, num_samples: int, sequence_length: int, vocab_size: int, seed: int) -> None:
        self._num_samples = num_samples
        self._seed = seed
        self._modulus = min(_MODULUS, vocab_size)
        self._factors, self._offsets = _congruential(sequence_length, self._modulus)

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._num_samples

    def __getitem__(self, index: int) -> torch.Tensor:
        """Sample `index`: int64 [sequence_length]."""
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + index)
        first = torch.randint(0, self._modulus, (1,), generator=generator)
        return (self._factors * first + self._offsets) % self._modulus


class TokenFile(Dataset[torch.Tensor]):
    """Consecutive pieces of a token array, which starts over at its end."""

    def __init__(self, tokens: np.ndarray, num_samples: int, sequence_length: int, vocab_size: int) -> None:
        self._tokens = tokens
        self._num_samples = num_samples
        self._length = sequence_length
        self._vocab_size = vocab_size
        self._pieces = len(tokens) // sequence_length
        if self._pieces == 0:
            raise ValueError(f"data.path: {len(tokens)} tokens are fewer than one sequence of {sequence_length}")

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._num_samples

    def __getitem__(self, index: int) -> torch.Tensor:
        """Sample `index`: int64 [sequence_length]."""
        start = (index % self._pieces) * self._length
        piece = np.asarray(self._tokens[start : start + self._length]).astype(np.int64)
        largest = int(piece.max())
        if largest >= self._vocab_size:
            raise ValueError(f"data.path: token {largest} is outside the model's vocabulary of {self._vocab_size}")
        return torch.from_numpy(piece)


def micro_batches(trial: TrialSpec, rank: int, num_steps: int, vocab_size: int) -> Iterator[torch.Tensor]:
    """Micro-batches of one rank in order, int64 [micro_batch_size, sequence_length], on the host.

    Empty for a rank that reads none: a server, or a driven rank. Enough for `num_steps` full batches. The samples of a
    step depend only on the number of samples before it, whatever the sizes of earlier batches.
    """
    if not micro_batches_read(trial, rank):
        return iter(())
    dataset = make_dataset(trial, num_steps * trial.global_batch_size, vocab_size)
    sampler: DistributedSampler[torch.Tensor] = DistributedSampler(
        dataset, num_replicas=data_parallel_size(trial), rank=share_of(trial, rank), shuffle=False
    )
    return iter(DataLoader(dataset, batch_size=trial.micro_batch_size, sampler=sampler, drop_last=True))


def make_dataset(trial: TrialSpec, num_samples: int, vocab_size: int) -> Dataset[torch.Tensor]:
    """Make the trial's data set with `num_samples` samples.

    Raises ValueError, with the field, if a file is too short or has tokens outside the vocabulary.
    """
    seed = trial.hyperparameters.seed
    if trial.data.kind is DataKind.SYNTHETIC:
        return SyntheticTokens(num_samples, trial.sequence_length, vocab_size, seed)
    tokens = read_text(trial.data) if trial.data.kind is DataKind.TEXT else read_tokens(Path(_path(trial.data)))
    return TokenFile(tokens, num_samples, trial.sequence_length, vocab_size)


def read_tokens(path: Path) -> np.ndarray:
    """Memory-map a token file: .npy of any integer type, or .bin of uint16 (usual for GPT-2 data)."""
    if path.suffix == ".npy":
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False)).reshape(-1)
    return np.memmap(path, dtype=np.uint16, mode="r")


def read_text(data: DataSpec) -> np.ndarray:
    """Tokenize a UTF-8 text file with the tokenizer at the given path."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    where = Path(data.tokenizer or "")
    if where.is_file():
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(where))
    else:
        tokenizer = AutoTokenizer.from_pretrained(str(where), local_files_only=True, trust_remote_code=False)
    text = Path(_path(data)).read_text(encoding="utf-8")
    return np.asarray(tokenizer(text, verbose=False)["input_ids"], dtype=np.int64)


def _path(data: DataSpec) -> str:
    if data.path is None:
        raise ValueError(f"data.path: needed for data.kind {data.kind}")
    return data.path


def _congruential(length: int, modulus: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Factors and offsets of x_k = factor_k x_0 + offset_k (mod modulus) for x -> _FACTOR x + _INCREMENT."""
    factor, offset = 1, 0
    factors, offsets = [], []
    for _ in range(length):
        factors.append(factor)
        offsets.append(offset)
        factor, offset = factor * _FACTOR % modulus, (offset * _FACTOR + _INCREMENT) % modulus
    return torch.tensor(factors), torch.tensor(offsets)
