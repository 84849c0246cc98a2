"""What this machine's processor is fast at is tried with real products, in a process of its own."""

import platform
import sys

import pytest

from tests.tools.refusals import one_line
from zerobench.config.derived.machine import Accelerator, Machine
from zerobench.config.sweep.precision import SLOW
from zerobench.config.sweep.sweep import load_sweep
from zerobench.launch.machine import arithmetic
from zerobench.launch.machine.arithmetic import bf16_slowdown, measure_arithmetic


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the variable is about x86-64's instructions")
def test_a_processor_without_avx512_is_found_slow_at_bf16(monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert bf16_slowdown() > SLOW


def test_a_try_without_an_answer_is_told_in_one_line_with_the_choices(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with one_line(match=r"precision: auto: .*choices: --set precision=fp32"):
        bf16_slowdown()


def test_nothing_is_tried_for_a_sweep_that_names_its_precision(monkeypatch):
    monkeypatch.setattr(arithmetic, "bf16_slowdown", lambda: pytest.fail("it was tried"))
    machine = Machine(accelerator=Accelerator.CPU, bf16_slowdown=None)
    assert measure_arithmetic(machine, load_sweep("distributed-training-compared")) is machine
