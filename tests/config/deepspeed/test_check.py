from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.refusals import at_most_one_line, one_line
from zerobench.config.deepspeed import check_ds_config, check_overrides


@pytest.mark.parametrize("written", [500_000_000, 5e8, "5e8", "500000000"])
def test_a_whole_number_may_be_written_as_yaml_and_the_command_line_read_it(written: Any) -> None:
    checked = check_overrides({"reduce_bucket_size": written})
    assert checked == {"zero_optimization.reduce_bucket_size": 500_000_000}
    assert type(checked["zero_optimization.reduce_bucket_size"]) is int


def test_nested_overrides_are_laid_out_flat() -> None:
    nested = {"zero_optimization": {"offload_optimizer": {"pin_memory": "false"}, "prefetch_bucket_size": 0}}
    assert check_overrides(nested) == {
        "zero_optimization.offload_optimizer.pin_memory": False,
        "zero_optimization.stage3_prefetch_bucket_size": 0,
    }


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"reduce_bucket_size": "big"},
            "zero_optimization.reduce_bucket_size: 'big' is not a whole number of 64 bits; ",
        ),
        ({"reduce_bucket_size": 1.5}, "1.5 is not a whole number"),
        ({"reduce_bucket_size": True}, "True is not a whole number"),
        ({"reduce_bucket_size": None}, "nothing is not a whole number of 64 bits; DeepSpeed's default is 500000000"),
        ({"reduce_bucket_size": [1, 2]}, "a list is not a whole number"),
        ({"reduce_bucket_size": "1e400"}, "is not a whole number"),
        ({"reduce_bucket_size": 10**400}, "is not a whole number"),
        ({"reduce_bucket_size": 0}, "0 must be more than 0"),
        ({"overlap_comm": "yes"}, "'yes' is not true or false"),
        ({"gradient_clipping": "nan"}, "nan is not a number; DeepSpeed's default is 1.0"),
        ({"offload_optimizer.device": "gpu"}, "'gpu' is not known; "),
        ({"offload_optimizer.device": "nvm"}, "did you mean 'nvme'? choices: none, cpu, nvme"),
        ({"zero_optimization.stage": 4}, "4 is not known; choices: 0, 1, 2, 3"),
        ({"zero_optimization": 3}, "3 is not a section of keys"),
        ({"offload_optimizer": {"devise": "cpu"}}, "did you mean 'zero_optimization.offload_optimizer.device'?"),
        ({"prefetch_bucket_size": 1, "stage3_prefetch_bucket_size": 2}, "is given twice"),
        ({3: 4}, "3 is not a DeepSpeed key"),
    ],
)
def test_a_wrong_override_is_refused_with_what_would_be_right(overrides: dict[Any, Any], message: str) -> None:
    with one_line(message, start="ds_config: "):
        check_overrides(overrides)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"zero_optimization": {"reduce_bucket_sise": 1}}, "did you mean 'zero_optimization.reduce_bucket_size'?"),
        ({"reduce_bucket_size": 1}, "did you mean 'zero_optimization.reduce_bucket_size'?"),
        ({"zero_optimization": {"offload_param": {"devise": "cpu"}}}, "'zero_optimization.offload_param.device'"),
        ({"zero_optimization": True}, "zero_optimization: True is not a section of keys"),
        ({"zero_optimization.stage": 2}, "'zero_optimization.stage' is not a key"),
        ({"zero_optimization": {"cpu_offload": True}}, "use zero_optimization.offload_optimizer"),
        ({"zero_optimization": {"reduce_bucket_size": "5e8"}}, "'5e8' is not a whole number"),
        ({"train_batch_size": "8"}, "train_batch_size: '8' is not a whole number"),
        ({"amp": {"enabled": True}}, "Apex AMP integration has been removed"),
        ([], "is a JSON object, not a list"),
    ],
)
def test_a_wrong_config_is_refused_by_its_file_and_key(config: Any, message: str) -> None:
    with one_line(message, start="my.json: "):
        check_ds_config(config, "my.json")


def test_a_config_with_auto_values_and_second_names_passes() -> None:
    check_ds_config(
        {
            "train_batch_size": "auto",
            "bfloat16": {"enabled": "auto"},
            "optimizer": {"type": "AdamW", "params": {"lr": "auto", "whatever": [1]}},
            "zero_optimization": {"stage": 3, "prefetch_bucket_size": 5e7, "offload_param": None},
            "comms_logger": {"enabled": True, "prof_ops": ["all_reduce"]},
        },
        "my.json",
    )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["zero_optimization", "stage", "optimizer", "params", "offload_param", "device", "x.y"])
            | st.text(max_size=8),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_any_json_is_either_taken_or_refused_in_one_line(value: Any) -> None:
    for check in (lambda: check_ds_config(value, "my.json"), lambda: check_overrides({"zero_optimization": value})):
        with at_most_one_line():
            check()
