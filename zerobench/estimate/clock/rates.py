"""What a GPU achieves of its datasheet: read from `rates.yaml`, fitted or assumed, each said.

`benchmarks/timing/llm_foundry.py` fits the constants and judges them on rows that they were not fitted to.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import yaml
from pydantic import Field

from zerobench.common.errors import UserError
from zerobench.config.hardware.hardware import Gpu
from zerobench.config.trial.base import Spec

FILE = Path(__file__).with_name("rates.yaml")


class Rates(Spec):
    """Achieved rates of one kind of GPU. Shares are of the datasheet's dense peak or bandwidth, between 0 and 1."""

    gemm_share: float = Field(gt=0, le=1)
    """Of the matrix peak, by a product whose tiles fill the GPU and whose inner dimension is long."""
    gemm_half_length: float = Field(ge=0)
    """Inner dimension at which a product reaches half of that: filling and draining a tile's pipeline."""
    attention_forward_share: float = Field(gt=0, le=1)
    """Of the matrix peak, by fused causal attention; its FLOPs halved by the mask."""
    attention_backward_share: float = Field(gt=0, le=1)
    memory_share: float = Field(gt=0, le=1)
    """Of the device memory's bandwidth, by elementwise kernels and the optimizer."""
    forward_words: float = Field(gt=0)
    """16-bit words that elementwise work moves a token and hidden unit in a block's forward pass (norms, residuals,
    activation, copies)."""
    backward_words: float = Field(gt=0)
    loss_words: float = Field(gt=0)
    """16-bit words that loss and its gradient move a token and word of the vocabulary."""
    step_s: float = Field(ge=0)
    """Seconds of a step that belong to no kernel of ours: data, norm, logging."""
    micro_batch_s: float = Field(default=0.0, ge=0)
    """The same of each of its micro-batches: a loop that waits for one before it launches the next."""
    link_share: float = Field(gt=0, le=1)
    """Of the link between GPUs of a node, by collectives of whole blocks."""
    network_share: float = Field(gt=0, le=1)
    contention: float = Field(ge=0, le=1)
    """Of the time of collectives that computing hides, by which it takes longer: they take multiprocessors and memory
    bandwidth from it."""
    jitter: float = Field(ge=0)
    """By which computing takes longer for each e-fold of ranks: all wait for the slowest. Of delays that are
    exponentially distributed the longest of N is about ln N times their mean."""
    in_programs: float = Field(default=1.0, gt=0)
    """Times that the passes' kernels take as long in a program as by themselves."""
    spread: float = Field(gt=0)
    """Standard deviation of the logarithm of a step's time, on rows that were not fitted."""
    source: str

    def slower(self, ranks: int) -> float:
        """Times that computing takes as long on so many ranks as on one."""
        return 1 + self.jitter * math.log(ranks)

    def between_s(self, micro_batches: float) -> float:
        """Seconds of a step with so many micro-batches that belong to no kernel of ours."""
        return self.step_s + micro_batches * self.micro_batch_s


class HostRates(Spec):
    """How fast a host issues work (host.py)."""

    launch_s: float = Field(gt=0)
    """Of one kernel."""
    update_share: float = Field(gt=0)
    """Of that, what one takes in an update, where no gradient is recorded."""
    slower: float = Field(gt=0)
    """Times that its Python takes as long as the measured host's."""
    launch_spread: float = Field(ge=0)
    """Standard deviation of the logarithm of `launch_s` from host to host."""
    python_spread: float = Field(ge=0)
    """The same of `slower`."""
    source: str

    @property
    def in_update(self) -> HostRates:
        """As it issues an update."""
        return self.model_copy(update={"launch_s": self.update_share * self.launch_s})

    def off(self, deviations: float) -> HostRates:
        """A host that is slower by so many standard deviations; faster by negative ones."""
        launch, python = (math.exp(deviations * spread) for spread in (self.launch_spread, self.python_spread))
        return self.model_copy(update={"launch_s": launch * self.launch_s, "slower": python * self.slower})


class Kernels(Spec):
    """Of one kind of GPU, as torch runs them today."""

    gemm_share: float = Field(gt=0, le=1)
    attention: dict[int, dict[str, tuple[float, float]]]
    """By a head's size, forward and backward: the share of the matrix peak where positions are many, and the positions
    at which it is half of that."""


class Fp32Products(Spec):
    """Of products in fp32, as adapters have them."""

    memory_share: float = Field(gt=0, le=1)
    """Of the rates' `memory_share`, by thin ones."""
    peak_share: float = Field(gt=0, le=1)
    """Of the peak without tensor cores, by wide ones."""


class Today(Spec):
    """What transformers on today's torch runs in place of what the fitted runs did."""

    kernels: dict[str, Kernels]
    """By kind of GPU."""
    eager_share: float = Field(gt=0, le=1)
    """Of the rates' `memory_share`, by the kernels of eager blocks: small, and casts among them."""
    by_element_bytes_per_s: float = Field(gt=0)
    """Of a multiprocessor whose threads move an element at a time, however fast the memory is: DeepSpeed's casts and
    searches for infinities in an update."""
    unaligned_flops_per_s: dict[int, float]
    """Of a multiprocessor, by products in 16 bits with a side whose size is no multiple of so much."""
    fp32: Fp32Products
    loss_words: float = Field(gt=0)
    """Logits are cast to fp32 and back."""
    alone: float = Field(gt=0)
    """Times that the passes' kernels take as long in a program of one rank as timed by themselves."""
    among_ranks: float = Field(gt=0)
    """The same in a program of several ranks."""
    step_s: float = Field(ge=0)
    """Of zerobench's loop."""
    spread: float = Field(gt=0)
    """In place of the rates', of steps of other programs."""


class ShippedRates(Spec):
    """What rates.yaml holds."""

    kinds: dict[str, Rates]
    fitted: dict[str, str]
    same_chip: dict[str, str]
    today: Today
    host: HostRates
    issue: dict[str, dict[str, tuple[float, float]]]
    """By engine and phase: microseconds of Python a block, and launches (host.py)."""


@cache
def shipped_rates() -> ShippedRates:
    """The file, read once."""
    return ShippedRates.model_validate(yaml.safe_load(FILE.read_text(encoding="utf-8")))


def kind_of(gpu: Gpu) -> tuple[str, dict[str, float]]:
    """Whose rates are those of `gpu`, and what is assumed of it with the spread that it brings (of the time's
    logarithm).
    """
    file = shipped_rates()
    if kind := file.fitted.get(gpu.name):
        return kind, {}
    if kind := file.same_chip.get(gpu.name):
        return kind, {f"{gpu.name} is as efficient as {kind.upper()}, the same chip": _SAME_CHIP_SPREAD}
    kind = "h100" if float(gpu.compute_capability or 0) >= _ADA else "a100"
    return kind, {f"{gpu.name} achieves the shares of {kind.upper()}": _OTHER_CHIP_SPREAD}


def rates_of(gpu: Gpu) -> tuple[Rates, dict[str, float]]:
    """The rates of `gpu` in the fitted runs, and what `kind_of` says is assumed."""
    kind, assumed = kind_of(gpu)
    return shipped_rates().kinds[kind], assumed


def kind_rates(kind: str) -> Rates:
    """The rates called `kind` in the file. Raises UserError with the choices."""
    kinds = shipped_rates().kinds
    if kind not in kinds:
        raise UserError(f"rates: {kind!r}; choices: {', '.join(kinds)}")
    return kinds[kind]


_ADA = 8.9
_SAME_CHIP_SPREAD = 0.08
_OTHER_CHIP_SPREAD = 0.25
"""No run on such a GPU was fitted: achieved shares of datasheets differ by so much between generations."""
