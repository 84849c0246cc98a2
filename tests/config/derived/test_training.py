"""What a training takes follows from its tokens, the step and the price, and from nothing else."""

import pytest

from zerobench.common.errors import UserError
from zerobench.config.derived.training import Training, most_energy_kwh, read_training
from zerobench.config.hardware.hardware import find_gpu
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import TrialSpec


def test_days_are_steps_times_their_length_and_gpu_hours_are_days_on_all_gpus():
    spec = TrialSpec(
        model=resolve_model("llama-7b"),
        strategy="zero3",
        gpus_per_node=8,
        num_nodes=8,
        micro_batch_size=2,
        sequence_length=4096,
    )
    training = Training(75_000.0 * spec.global_batch_tokens)
    assert training.days(0.5, spec) == pytest.approx(75_000 * 0.5 / 86_400)
    assert training.gpu_hours(0.5, spec) == pytest.approx(75_000 * 0.5 / 3600 * 64)


def test_cost_is_gpu_hours_times_price_and_unknown_without_one():
    assert Training(1.0, 2.5).cost(400) == 1000
    assert Training(1.0).cost(400) is None


def test_gpus_draw_at_most_their_rated_power_and_nothing_is_said_of_one_without():
    h100 = find_gpu("H100 SXM")
    assert h100 is not None
    assert most_energy_kwh(h100, 100) == 70  # 700 W
    assert most_energy_kwh(h100.model_copy(update={"power_watts": None}), 100) is None


def test_tokens_and_price_are_read_as_people_write_them():
    assert read_training("300B", " 2.5 ") == Training(300e9, 2.5)
    assert read_training("1T", None) == Training(1e12)
    assert read_training(None, None) is None


@pytest.mark.parametrize("price", ["0", "-1", "$2", "true", "nan", "inf", "2e9", ""])
def test_what_is_no_price_is_refused_by_name(price: str):
    with pytest.raises(UserError, match=r"--price: .*; choices: a price per GPU-hour above 0"):
        read_training("300B", price)


def test_a_price_without_tokens_is_not_left_unused():
    with pytest.raises(UserError, match="--price: needs --tokens"):
        read_training(None, "2")
