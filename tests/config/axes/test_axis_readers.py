"""What each reader of an axis takes and refuses, at its limits."""

from typing import Any

import pytest

from zerobench.common.errors import UserError
from zerobench.config.axes import axis_readers as readers
from zerobench.config.axes.axis import Reader
from zerobench.config.trial.batch_ramp import RampRequest
from zerobench.config.trial.checkpoint import CheckpointSpec
from zerobench.config.trial.trial import Offload, Precision

MOST_RANKS = 1_048_576
offload = readers.choice(Offload)


@pytest.mark.parametrize(("reader", "written", "read"), [
    (readers.positive, 1, 1),
    (readers.positive, 2_147_483_647, 2_147_483_647),
    (readers.positive, "8", 8),
    (readers.positive, "2e3", 2000),
    (readers.ranks, 1, 1),
    (readers.ranks, MOST_RANKS, MOST_RANKS),
    (readers.ranks, "auto", "auto"),
    (readers.rank, 0, 0),
    (readers.rank, MOST_RANKS - 1, MOST_RANKS - 1),
    (readers.rank, "last", "last"),
    (readers.rank, "all", "all"),
    (readers.group, 2, 2),
    (readers.group, MOST_RANKS, MOST_RANKS),
    (readers.or_null(readers.group), None, None),
    (readers.or_null(readers.group), 4, 4),
    (offload, "cpu", Offload.CPU),
    (offload, "none", Offload.NONE),
    (offload, None, Offload.NONE),
    (readers.precision, "auto", "auto"),
    (readers.precision, "bf16", Precision.BF16),
    (readers.gpu, None, None),
    (readers.gpu, "none", None),
    (readers.gpu, "auto", "auto"),
    (readers.gpu, "h100", "H100 SXM"),
    (readers.switch, True, True),
    (readers.switch, False, False),
    (readers.text, None, None),
    (readers.text, "/a", "/a"),
    (readers.batch_ramp, None, None),
    (readers.batch_ramp, "none", None),
    (readers.batch_ramp, {"over_batches": "2e1"}, RampRequest(over_batches=20)),
    (readers.checkpoint, None, None),
    (readers.checkpoint, "none", None),
    (readers.checkpoint, 3, CheckpointSpec(every_steps=3)),
    (readers.checkpoint, {"every_steps": 3, "keep": True}, CheckpointSpec(every_steps=3, keep=True)),
    (readers.strategy, "zero2", "zero2"),
    (readers.config_file, None, None),
])  # fmt: skip
def test_a_value_is_read_as_it_is_written(reader: Reader, written: object, read: Any) -> None:
    [found] = reader("axis", written)
    assert found == read
    assert type(found) is type(read)


@pytest.mark.parametrize(("reader", "written", "choices"), [
    (readers.positive, 0, "an integer from 1 to 2147483647"),
    (readers.positive, 2_147_483_648, "an integer from 1 to 2147483647"),
    (readers.positive, 1.5, "an integer from 1 to 2147483647"),
    (readers.positive, True, "an integer from 1 to 2147483647"),
    (readers.positive, "auto", "an integer from 1 to 2147483647"),
    (readers.positive, None, "an integer from 1 to 2147483647"),
    (readers.ranks, 0, f"an integer from 1 to {MOST_RANKS}, or auto"),
    (readers.ranks, MOST_RANKS + 1, f"an integer from 1 to {MOST_RANKS}, or auto"),
    (readers.ranks, "last", f"an integer from 1 to {MOST_RANKS}, or auto"),
    (readers.rank, -1, f"an integer from 0 to {MOST_RANKS - 1}, or last, or all"),
    (readers.rank, MOST_RANKS, f"an integer from 0 to {MOST_RANKS - 1}, or last, or all"),
    (readers.rank, "auto", f"an integer from 0 to {MOST_RANKS - 1}, or last, or all"),
    (readers.group, 1, f"an integer from 2 to {MOST_RANKS}"),
    (readers.group, None, f"an integer from 2 to {MOST_RANKS}"),
    (readers.text, "", "a path, or null"),
    (readers.text, 3, "a path, or null"),
    (readers.batch_ramp, 3, "none, or a mapping of start_tokens, increment_tokens, over_tokens, over_batches"),
])  # fmt: skip
def test_what_it_does_not_take_is_refused_with_the_choices(reader: Reader, written: object, choices: str) -> None:
    with pytest.raises(UserError, match=r"^axis: ") as refused:
        reader("axis", written)
    assert str(refused.value).endswith(f"; choices: {choices}")


@pytest.mark.parametrize(("reader", "written", "said"), [
    (offload, "disk", "cpu"),
    (offload, True, "cpu"),
    (readers.choice(Precision), None, "bf16"),
    (readers.precision, "auto2", "auto"),
    (readers.switch, 1, "true"),
    (readers.switch, "true", "true"),
    (readers.gpu, "h1000000", "h100"),
    (readers.checkpoint, 0, "axis.every_steps: 0"),
    (readers.checkpoint, {"every_steps": 0}, "every_steps"),
    (readers.checkpoint, {"every_step": 3}, "every_step"),
    (readers.batch_ramp, {"over_batches": True}, "axis: over_batches: true is not a number"),
    (readers.batch_ramp, {"over_batches": 3, "over_tokens": 3}, "it takes one of over_tokens, over_batches"),
    (readers.batch_ramp, {}, "it takes one of over_tokens, over_batches"),
    (readers.strategy, "zero4", "zero3"),
])  # fmt: skip
def test_a_wrong_word_is_refused_with_what_it_should_be(reader: Reader, written: object, said: str) -> None:
    with pytest.raises(UserError) as refused:
        reader("axis", written)
    assert said.lower() in str(refused.value).lower()


def test_each_list_of_deepspeeds_keys_is_multiplied_out_the_last_fastest() -> None:
    written = {"reduce_bucket_size": [5, 6], "zero_optimization": {"overlap_comm": [True, False]}}
    bucket, overlap = "zero_optimization.reduce_bucket_size", "zero_optimization.overlap_comm"
    assert readers.overrides("ds_config", written) == [
        {bucket: size, overlap: on} for size in (5, 6) for on in (True, False)
    ]
    assert readers.overrides("ds_config", None) == [{}]


def test_ten_thousand_points_of_deepspeeds_keys_are_the_most() -> None:
    buckets = [*range(1, 102)]
    written = {"reduce_bucket_size": buckets[:100], "allgather_bucket_size": buckets[:100]}
    assert len(readers.overrides("ds_config", written)) == 10_000
    with pytest.raises(UserError, match=r"^ds_config: the lists multiply to more than 10000 points$"):
        readers.overrides("ds_config", written | {"allgather_bucket_size": buckets})


@pytest.mark.parametrize(("written", "said"), [
    ({"reduce_bucket_size": []}, "zero_optimization.reduce_bucket_size: [] is empty; give one or more values"),
    ({"reduce_bucket_size": 5, "zero_optimization": {"reduce_bucket_size": 6}}, "is given twice"),
    ([1], "not a mapping of DeepSpeed keys; for example {reduce_bucket_size: 5e8}"),
])  # fmt: skip
def test_keys_of_deepspeed_that_mean_nothing_are_refused(written: object, said: str) -> None:
    with pytest.raises(UserError) as refused:
        readers.overrides("ds_config", written)
    assert said in str(refused.value)


def test_a_key_of_deepspeed_is_named_by_its_full_path_and_refused_in_the_words_of_the_option() -> None:
    assert readers.full_key("reduce_bucket_size", "--only") == "ds_config.zero_optimization.reduce_bucket_size"
    with pytest.raises(UserError, match=r"^--only: "):
        readers.full_key("reduce_bucket_sise", "--only")
