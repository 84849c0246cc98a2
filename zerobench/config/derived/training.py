"""Cost of a training run of a number of tokens at a given step time: days, GPU-hours, money, energy."""

from dataclasses import dataclass

from zerobench.common.errors import UserError
from zerobench.config.derived.cluster import read_tokens
from zerobench.config.hardware.hardware import Gpu
from zerobench.config.trial.plain import format_value, one_line, parse_number
from zerobench.config.trial.trial import TrialSpec

_MOST_PRICE = 1e9


@dataclass(frozen=True)
class Training:
    """Tokens to train, and their price."""

    tokens: float
    price_per_gpu_hour: float | None = None
    """In the user's own currency."""

    def days(self, step_s: float, spec: TrialSpec) -> float:
        """Days for steps of `spec` of `step_s` seconds."""
        return self.tokens / spec.global_batch_tokens * step_s / (24 * 3600.0)

    def gpu_hours(self, step_s: float, spec: TrialSpec) -> float:
        """Days times all GPUs, in hours."""
        return self.days(step_s, spec) * 24 * spec.world_size

    def cost(self, gpu_hours: float) -> float | None:
        """Price of `gpu_hours`; None without one."""
        return None if self.price_per_gpu_hour is None else gpu_hours * self.price_per_gpu_hour


def most_energy_kwh(gpu: Gpu, gpu_hours: float) -> float | None:
    """Energy of the GPUs at their rated power, which none exceeds for long; without hosts, network and cooling.

    None if the catalogue does not have the power.
    """
    return None if gpu.power_watts is None else gpu_hours * gpu.power_watts / 1000


def read_training(tokens: str | None, price: str | None) -> Training | None:
    """Read `--tokens` and `--price`; None without tokens. Raises UserError, which begins with the option."""
    if tokens is None:
        if price is not None:
            raise UserError("--price: needs --tokens; for example --tokens 300B")
        return None
    return Training(read_tokens("--tokens", tokens), None if price is None else _read_price(price))


def _read_price(text: str) -> float:
    number = parse_number(text.strip())
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number <= _MOST_PRICE:
        raise UserError(
            one_line(f"--price: {format_value(text)}; choices: a price per GPU-hour above 0, for example 2.5")
        )
    return float(number)
