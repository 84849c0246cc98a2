"""On the emulated GPU, values that programs decide with are right, and large ones take neither memory nor time."""

from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("values_program.py")


@pytest.fixture(scope="module")
def values(emulated):
    return emulated(PROGRAM.read_text())


def test_operations_on_140_gb_of_the_host_take_no_memory(values):
    assert values["large_on_host"]["resident"] < 200e6


def test_what_is_not_computed_has_its_shape_and_type_and_is_zero(values):
    seen = values["large_on_host"]
    assert seen["shapes"] == [[35_000_000_000], "torch.bfloat16", [500_000_000], True, True]
    assert seen["sort"] == ["torch.float32", "torch.int64"]
    assert (seen["total"], seen["is_nan"]) == (0.0, False)
    assert values["counts"][0] >= 10


def test_small_tensors_and_integers_of_any_size_are_right_on_the_host(values):
    assert values["small_on_host"] == {
        "gradient": [1.0] * 8,
        "order": [499_999_500_000, 999_999],
        "nonzero": 1_000_000,
        "large_parameter": 0.0,
    }


def test_counts_and_small_numbers_of_the_device_are_right(values):
    seen = values["on_device"]
    assert seen["count"] == [8 * 4096, True]
    assert seen["nonzero"] == [8 * 4096, 2]
    assert seen["norm_of_norms"] == 5.0
    assert seen["clipped"] == [4.899, 0.408]  # sqrt(6 * 4); 2 / 4.899
    assert seen["stepped"] == [0.9, 1.0]  # Adam's first step is the learning rate


def test_large_numbers_of_the_device_are_zero_and_never_what_lay_there_before(values):
    seen = values["on_device"]
    assert seen["activations"] == [0.0, False, 0.0]
    assert seen["no_leftovers"]
    assert seen["random"] == [0.0] * 3


def test_a_loss_scale_stays_what_it_was(values):
    assert values["scaler"]["scale"] == 65536.0


def test_a_router_that_was_not_computed_sends_each_expert_as_many_tokens(values):
    seen = values["routing"]
    assert seen["topk"] == seen["hot"] == [512] * 8
    assert seen["distinct"]
    assert seen["tokens_of_3"] == 512
    assert seen["argmax"] == [256] * 8


def test_numbers_that_were_computed_are_ranked_by_themselves(values):
    assert values["routing"]["known"] == [[1, 0], [1, 0]]


def test_a_block_that_another_stream_may_still_use_does_not_make_rounding_negative(values):
    seen = values["rounding"]
    assert seen["pending"] >= 50_000_000
    assert 0 < seen["rounding"] < 1_000_000
