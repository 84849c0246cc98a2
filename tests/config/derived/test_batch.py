"""How a step's samples are shared among ranks."""

import pytest

from zerobench.config.derived.batch import limit_micro_batches, micro_batches_per_step, micro_batches_read, share_of
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import TrialSpec


def spec(strategy: str, **fields: object) -> TrialSpec:
    work = {"gpus_per_node": 4, "micro_batch_size": 2, "sequence_length": 64, "gradient_accumulation_steps": 6}
    return TrialSpec.model_validate({"model": resolve_model("llama-10m"), "strategy": strategy, **work, **fields})


@pytest.mark.parametrize(("step_tokens", "expected"), [(None, 6), (2 * 64 * 4 * 6, 6), (2 * 64 * 4 * 3, 3), (512, 1)])
def test_a_step_of_fewer_tokens_has_as_many_fewer_micro_batches_on_each_rank(
    step_tokens: int | None, expected: int
) -> None:
    assert {micro_batches_per_step(spec("zero1"), rank, step_tokens) for rank in range(4)} == {expected}


def test_where_one_rank_drives_the_others_it_alone_reads() -> None:
    driven = spec("rpc-pipeline")
    assert [micro_batches_read(driven, rank) for rank in range(4)] == [micro_batches_per_step(driven, 0), 0, 0, 0]
    assert micro_batches_read(spec("zero1"), 3) == 6


@pytest.mark.parametrize(("most", "played"), [(None, 6), (8, 6), (6, 6), (4, 4)])
def test_a_prediction_plays_no_more_micro_batches_than_it_is_given(most: int | None, played: int) -> None:
    asked = spec("zero2", prediction={"micro_batches": most})
    assert limit_micro_batches(asked).gradient_accumulation_steps == played


def test_the_first_share_is_the_first_workers_where_a_server_comes_before_it() -> None:
    assert [share_of(spec("parameter-server"), rank) for rank in range(1, 4)] == [0, 1, 2]
