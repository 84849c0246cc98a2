"""Resolves `precision: auto` on a machine, and reports the choice."""

from collections.abc import Iterable

from zerobench.config.axes.axis_readers import AUTO
from zerobench.config.derived.machine import Accelerator, Machine
from zerobench.config.sweep.sweep import Sweep
from zerobench.config.trial.trial import Precision, TrialSpec

SLOW = 3.0
"""A processor is slow at bf16 if a product takes this many times as long as in fp32. Measured with ONEDNN_MAX_CPU_ISA
on one processor: 0.3 with AMX, 2 with AVX512_BF16, 5 with AVX-512 alone, 62 with AVX2."""


def auto_precision(machine: Machine) -> Precision:
    """bf16 where it is fast; fp32 on a processor where it is slow or not measured (another node's).

    On a GPU without bf16 it is fp16.
    """
    if machine.accelerator is Accelerator.CUDA:
        return Precision.BF16 if machine.supports_bf16 else Precision.FP16
    is_fast = machine.bf16_slowdown is not None and machine.bf16_slowdown < SLOW
    return Precision.BF16 if is_fast else Precision.FP32


def needs_bf16_speed(sweep: Sweep, machine: Machine) -> bool:
    """Return whether `sweep` has CPU ranks with precision `auto` and the processor's bf16 speed is unknown."""
    on_cpu = sweep.grids(Accelerator.CPU)
    return machine.bf16_slowdown is None and any(
        AUTO in grid.get("precision", []) and (machine.accelerator is Accelerator.CPU or None in grid.get("gpu", []))
        for grid in (on_cpu.grid, *on_cpu.include)
    )


def precision_notes(trials: Iterable[TrialSpec], machine: Machine) -> list[str]:
    """Sentence on `auto`, if one of `trials` left its precision to `machine` and uses its CPU."""
    if machine.accelerator is not Accelerator.CPU:
        return []
    uses_auto = any(
        spec.precision_is_auto and (spec.evidence.needs_device or spec.prediction.gpu is None) for spec in trials
    )
    return [auto_precision_sentence(machine)] if uses_auto else []


def auto_precision_sentence(machine: Machine) -> str:
    """Report the meaning of `auto` for CPU ranks, with the reason."""
    times = machine.bf16_slowdown
    if times is None:
        return f"precision: {auto_precision(machine)} (auto; this processor's bf16 speed was not measured)"
    return f"precision: {auto_precision(machine)} (auto; bf16 takes {times:.2g} x as long as fp32 on this processor)"
