"""What is varied at a global batch: every split of it that the ranks share, and no other."""

from typing import Any

import pytest

from zerobench.common.errors import UserError
from zerobench.config.derived.varied import SELECTIVE, WHOLE, key_changes, read_global_batch, varied
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import Offload, TrialSpec


def spec(**fields: Any) -> TrialSpec:
    return TrialSpec(model=ModelSpec(name="m", hf_config={"model_type": "llama"}), **fields)


def test_every_variant_trains_the_global_batch_and_no_two_are_alike() -> None:
    cell = spec(strategy="zero3", num_nodes=1, gpus_per_node=8)
    found = [one for family in varied(96, 8, {}, tunes=True).families(cell) for one in family]
    assert {one.global_batch_size for one in found} == {96}
    assert {one.micro_batch_size for one in found} == {1, 2, 3, 4, 6, 12}
    assert {one.activation_checkpointing for one in found} == set(SELECTIVE)
    assert len({one.config_hash for one in found}) == len(found)


@pytest.mark.parametrize(
    ("strategy", "offload", "num_settings"),
    [
        ("zero0", Offload.NONE, 1),
        ("zero1", Offload.NONE, 4),
        ("zero2", Offload.CPU, 2),
        ("zero3", Offload.NONE, 2),
        ("zero3", Offload.CPU, 8),
        ("zero3", Offload.NVME, 2),
    ],
)
def test_keys_are_varied_where_the_stage_reads_them_and_defaults_come_first(
    strategy: str, offload: Offload, num_settings: int
) -> None:
    cell = spec(strategy=strategy, offload_optimizer=offload, gpus_per_node=8)
    found = [family[0].ds_config for family in varied(8, 8, {}, tunes=True).families(cell)]
    assert found[0] == {}
    assert len({str(one) for one in found}) == num_settings
    assert {value for one in found for value in one.values()} <= {True, 100_000_000, 50_000_000, 0.25, 0.5, 0.75}
    assert all(one == {} for one in [family[0].ds_config for family in varied(8, 8, {}, tunes=False).families(cell)])


BUCKETS = {"reduce_bucket_size": [50_000_000], "allgather_bucket_size": [50_000_000]}
AHEAD = {"stage3_prefetch_bucket_size": [200_000_000, 5_000_000], "stage3_param_persistence_threshold": [1_000_000]}
ISSUED = {"zero0": {}, "zero1": BUCKETS, "zero2": BUCKETS, "zero3": {"reduce_bucket_size": [50_000_000]} | AHEAD}


@pytest.mark.parametrize(("strategy", "keys"), ISSUED.items())
def test_keys_that_move_collectives_are_changed_one_by_one(strategy: str, keys: dict[str, list[int]]) -> None:
    changes = [{f"zero_optimization.{name}": value} for name, values in keys.items() for value in values]
    assert key_changes(spec(strategy=strategy, gpus_per_node=8)) == changes
    assert key_changes(spec(strategy=strategy, gpus_per_node=1)) == []
    for change in changes:
        assert change not in key_changes(spec(strategy=strategy, gpus_per_node=8, ds_config=change))


def test_what_is_given_is_not_varied() -> None:
    assert varied(96, 8, {"micro_batch_size": 4}, tunes=False).micro_batches == (4,)
    assert varied(96, 8, {"gradient_accumulation_steps": 4}, tunes=False).micro_batches == (3,)
    assert varied(96, 8, {"activation_checkpointing": True}, tunes=False).checkpointings == (True,)
    assert varied(96, 8, {"activation_checkpointing": False}, tunes=False).checkpointings == WHOLE


@pytest.mark.parametrize(
    ("sequences", "tokens", "expected"), [(None, None, None), ("256", None, 256), (None, "4M", 1952), (None, "1", 8)]
)
def test_tokens_a_step_come_to_the_nearest_batch_that_the_ranks_share(
    sequences: str | None, tokens: str | None, expected: int | None
) -> None:
    assert read_global_batch(sequences, tokens, sequence_length=2048, ranks=8) == expected


@pytest.mark.parametrize(
    ("sequences", "tokens", "words"),
    [
        ("100", None, "--global-batch: 8 GPUs cannot share 100 sequences; choices: 96, 104"),
        ("3", None, "cannot share 3 sequences; choices: 8"),
        ("many", None, "--global-batch: 'many' is not a whole number"),
        ("256", "4M", "--tokens-per-step contradicts --global-batch"),
    ],
)
def test_a_batch_that_ranks_cannot_share_is_refused_with_those_beside_it(
    sequences: str | None, tokens: str | None, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        read_global_batch(sequences, tokens, sequence_length=2048, ranks=8)


def test_a_micro_batch_that_does_not_divide_the_batch_is_refused() -> None:
    with pytest.raises(UserError, match="--global-batch: 96 on 8 GPUs is 12 per GPU, not divisible by --micro-batch 5"):
        varied(96, 8, {"micro_batch_size": 5}, tunes=False)
