"""Ranks see disjoint samples, and one step's samples are the same set for every world size."""

import numpy as np
import pytest
import torch

from tests.tools.at_least_one import at_least_one
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import DataSpec, TrialSpec
from zerobench.rank.training.data import micro_batches, read_text, read_tokens

MODEL = ModelSpec(name="m", hf_config={"model_type": "gpt2"})


def trial(world_size, accumulation, **more):
    return TrialSpec(
        model=MODEL,
        strategy="zero1",
        gpus_per_node=world_size,
        micro_batch_size=2,
        gradient_accumulation_steps=accumulation,
        sequence_length=16,
        **more,
    )


def step_samples(spec, steps=3):
    """For each step, the set of all ranks' sequences."""
    ranks = [list(micro_batches(spec, rank, steps, 1000)) for rank in range(spec.world_size)]
    count = spec.gradient_accumulation_steps
    result = []
    for step in range(steps):
        rows = [
            tuple(row.tolist()) for batches in ranks for b in batches[step * count : (step + 1) * count] for row in b
        ]
        result.append(sorted(rows))
    return result


def test_a_single_process_sees_the_same_samples_in_each_step_as_four_ranks():
    assert step_samples(trial(4, 1)) == step_samples(trial(1, 4))


def test_ranks_see_disjoint_samples():
    for rows in at_least_one(step_samples(trial(2, 2))):
        assert len(set(rows)) == len(rows)


def test_synthetic_tokens_stay_inside_a_small_vocabulary():
    batch = next(micro_batches(trial(1, 1), 0, 1, 7))
    assert batch.shape == (2, 16)
    assert batch.dtype == torch.int64
    assert int(batch.max()) < 7


@pytest.mark.parametrize("name", ["tokens.npy", "tokens.bin"])
def test_a_token_file_is_read_in_order(tmp_path, name):
    path = tmp_path / name
    tokens = np.arange(64, dtype=np.uint16)
    np.save(path, tokens) if name.endswith("npy") else tokens.tofile(path)
    spec = trial(1, 1, data=DataSpec(kind="tokens", path=str(path)))
    assert next(micro_batches(spec, 0, 1, 1000)).tolist() == tokens[:32].reshape(2, 16).tolist()
    assert len(read_tokens(path)) == 64


def test_a_token_outside_the_vocabulary_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "tokens.npy"
    np.save(path, np.full(64, 5000))
    spec = trial(1, 1, data=DataSpec(kind="tokens", path=str(path)))
    with pytest.raises(ValueError, match="token 5000 is outside"):
        next(micro_batches(spec, 0, 1, 1000))


def test_a_file_shorter_than_one_sequence_is_an_error(tmp_path):
    path = tmp_path / "tokens.npy"
    np.save(path, np.zeros(5, dtype=np.int32))
    with pytest.raises(ValueError, match="fewer than one sequence"):
        micro_batches(trial(1, 1, data=DataSpec(kind="tokens", path=str(path))), 0, 1, 1000)


def test_a_pickled_token_file_is_refused(tmp_path):
    path = tmp_path / "tokens.npy"
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"pickle|Python objects"):
        read_tokens(path)


def test_a_text_file_is_cut_by_the_tokenizer_at_a_path(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"the": 0, "cat": 1, "sat": 2, "[UNK]": 3}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))  # noqa: S106 - a word for unknown words
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text.txt").write_text("the cat sat the dog")
    data = DataSpec(kind="text", path=str(tmp_path / "text.txt"), tokenizer=str(tmp_path / "tokenizer.json"))
    assert read_text(data).tolist() == [0, 1, 2, 0, 3]
