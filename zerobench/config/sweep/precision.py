"""What `precision: auto` comes to on a machine, and how that is said to people."""

from collections.abc import Iterable

from zerobench.config.axes.axis_readers import AUTO
from zerobench.config.derived.machine import Accelerator, Machine
from zerobench.config.sweep.sweep import Sweep
from zerobench.config.trial.trial import Precision, TrialSpec

SLOW = 3.0
"""A processor that takes this many times longer for a product in bf16 than in fp32 is slow at it. Tried with
ONEDNN_MAX_CPU_ISA on one processor: 0.3 with AMX, 2 with AVX512_BF16, 5 with AVX-512 alone, 62 with AVX2."""


def auto_precision(machine: Machine) -> Precision:
    """bf16 where ranks are fast at it; on a processor that is not, or that nobody has tried (another node's), fp32.

    On a GPU without bf16 it is fp16.
    """
    if machine.accelerator is Accelerator.CUDA:
        return Precision.BF16 if machine.supports_bf16 else Precision.FP16
    is_fast = machine.bf16_slowdown is not None and machine.bf16_slowdown < SLOW
    return Precision.BF16 if is_fast else Precision.FP32


def must_be_tried(sweep: Sweep, machine: Machine) -> bool:
    """Whether `sweep` has points about CPU ranks whose precision is `auto`, and nobody has tried the processor."""
    on_cpu = sweep.grids(Accelerator.CPU)
    return machine.bf16_slowdown is None and any(
        AUTO in grid.get("precision", []) and (machine.accelerator is Accelerator.CPU or None in grid.get("gpu", []))
        for grid in (on_cpu.grid, *on_cpu.include)
    )


def said_of(trials: Iterable[TrialSpec], machine: Machine) -> list[str]:
    """The sentence, where one of `trials` left its precision to `machine` and is measured or predicted on its CPU."""
    if machine.accelerator is not Accelerator.CPU:
        return []
    left = any(
        spec.precision_is_auto and (spec.evidence.needs_device or spec.prediction.gpu is None) for spec in trials
    )
    return [sentence(machine)] if left else []


def sentence(machine: Machine) -> str:
    """What `auto` came to on a machine of CPU ranks, and why."""
    times = machine.bf16_slowdown
    if times is None:
        return f"precision: {auto_precision(machine)} (auto; this processor's bf16 speed was not measured)"
    return f"precision: {auto_precision(machine)} (auto; bf16 takes {times:.2g} x as long as fp32 on this processor)"
