"""What `--only` can be told."""

import pytest

from zerobench.common.errors import UserError
from zerobench.config.sweep.only import Only, read_only, shown


@pytest.mark.parametrize(
    ("text", "only"),
    [
        ("micro_batch_size=2, 4e0", Only("micro_batch_size", ("2", "4"))),
        ("gpu=h200,null", Only("gpu", ("H200 SXM", "null"))),
        (
            "ds_config.stage3_prefetch_bucket_size=7",
            Only("ds_config.zero_optimization.stage3_prefetch_bucket_size", ("7",)),
        ),
        ("llama-10m,*-r1", Only("id", ("llama-10m", "*-r1"))),
    ],
)
def test_a_filter_names_an_axis_or_trials_and_writes_its_values_as_points_do(text: str, only: Only) -> None:
    assert read_only(text) == only


@pytest.mark.parametrize(("value", "text"), [(True, "true"), (False, "false"), (None, "null"), (0.5, "0.5")])
def test_a_points_value_is_shown_as_a_filter_writes_it(value: object, text: str) -> None:
    assert shown("compile", {"compile": value}) == text
    assert shown("ds_config.a.b", {"ds_config": {"a.b": value}}) == text


@pytest.mark.parametrize(
    ("axis", "told"),
    [("ds_config", "did you mean 'ds_config.KEY'"), ("modle", "did you mean 'model'"), ("ab", "choices: model, ")],
)
def test_what_is_no_axis_is_refused_with_the_nearest_and_what_lists_all(axis: str, told: str) -> None:
    with pytest.raises(
        UserError, match=rf"--only: axis: '{axis}' is not known; {told}.* all 39: zerobench sweeps --axes"
    ):
        read_only(f"{axis}=3")
