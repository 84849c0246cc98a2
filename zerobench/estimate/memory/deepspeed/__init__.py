"""Allocations of DeepSpeed per stage and offload, in closed form: read in the source of DeepSpeed 0.19.8.

Where the ZeRO paper counts model states, DeepSpeed has buckets, copies, padding and an order in which they come and go.
Each function or term names the file and the function of DeepSpeed that it follows; `departures` says in sentences what
the paper does not count. Not followed: round_robin_gradients, parameter_alignment, quantized weights and gradients,
ZenFlow, mixtures of experts, and hpZ where parameters are offloaded. What the allocator rounds and cannot give back
is played (estimate/memory/allocator.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from zerobench.common.vocabulary import Place, StepKind
from zerobench.estimate.memory.deepspeed import stage_0, stage_1_and_2, stage_3, stage_3_offload
from zerobench.estimate.memory.deepspeed.setting import NOTHING, Instants, Setting

__all__ = ["Instants", "Setting", "deepspeed_instants"]


def deepspeed_instants(setting: Setting, step: StepKind) -> Mapping[Place, Instants]:
    """Bytes of model states and buffers of one rank in each place, over the first step or a steady one."""
    if setting.case.stage == 0:
        return {Place.DEVICE: stage_0.device(setting, step), Place.HOST: NOTHING, Place.NVME: NOTHING}
    if setting.case.stage < 3:
        start_up = replace(NOTHING, init=(stage_1_and_2.flattening_host(setting), {}))
        host = stage_1_and_2.host(setting, step) if setting.offloads else start_up
        return {Place.DEVICE: stage_1_and_2.device(setting, step), Place.HOST: host, Place.NVME: NOTHING}
    return {
        Place.DEVICE: stage_3.device(setting, step),
        Place.HOST: stage_3_offload.host(setting, step),
        Place.NVME: stage_3_offload.nvme(setting, step),
    }
