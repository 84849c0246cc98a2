"""What a user's step issues is recorded on the emulated GPU, and nothing else is different for it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.tools.emulated import Emulated
from zerobench.estimate.clock.trace import BACKWARD, FORWARD, UPDATE, EventWait, Kernels, PhaseStart, StepTrace, unpack
from zerobench.rank.ledger.script_order import MOST_ITEMS

PROGRAM = """
import json, sys
import torch
from zerobench.common.vocabulary import Phase
from zerobench.emulator.inside import kernels
from zerobench.launch.tracking.step_phases import StepPhases
from zerobench.rank.ledger.device import describe_device
from zerobench.rank.ledger.engine_tensors import walk_module
from zerobench.rank.ledger.recorder import NvmeAccount
from zerobench.rank.ledger.script_order import ScriptOrder

kernels.install()
order = ScriptOrder(1, waits_at_the_end=False) if sys.argv[1] == "recorded" else None
if len(sys.argv) > 2:
    def fails(*_, **__):
        raise ValueError("planted")
    order._issued._convolve = fails
cuda = torch.cuda
methods = lambda: [cuda.synchronize, cuda.Event.record, cuda.Event.wait, cuda.Stream.synchronize]
before = methods()
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 16, 3), torch.nn.Conv2d(16, 16, 3, groups=16), torch.nn.Flatten(),
    torch.nn.Linear(16 * 12 * 12, 64),
).cuda()
attend = torch.nn.functional.scaled_dot_product_attention
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
steps = StepPhases(
    describe_device(torch.device("cuda", 0)), model, lambda: walk_module(model), NvmeAccount(None, 0),
    ["first", "memory", "warmup"], in_own_process=False, order=order,
)
while not steps.is_over:
    steps.open()
    for _ in range(3):
        steps.enter(Phase.FORWARD)
        made = model(torch.ones(32, 3, 16, 16, device="cuda"))
        with torch.autocast("cuda", torch.bfloat16):
            loss = (made @ model[3].weight).sum()
        heads = torch.ones(1, 4, 128, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        loss = loss + attend(heads, heads, heads).sum()
        steps.enter(Phase.BACKWARD)
        loss.backward()
        steps.leave()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.cuda.synchronize()
    steps.enter(Phase.STEP)
    optimizer.step()
    optimizer.zero_grad()
    steps.close()
rows = [row.model_dump(mode="json") for row in [*steps.ledger.rows(), *steps.rows.rows.values()]]
trace = None if order is None else order.trace()
problem = None if order is None else order.problem
print(json.dumps([rows, trace, problem, methods() == before]))
"""


@pytest.fixture(scope="module")
def recorded(emulated: Emulated) -> list[Any]:
    told: list[Any] = emulated(PROGRAM, "recorded")
    return told


@pytest.fixture(scope="module")
def trace(recorded: list[Any]) -> StepTrace:
    return unpack(recorded[1])


def test_no_byte_of_the_ledger_is_different_for_it_and_torch_is_itself_again(
    emulated: Emulated, recorded: list[Any]
) -> None:
    rows, trace, _, is_restored = emulated(PROGRAM, "plain")
    assert trace is None
    assert len(rows) > 20
    assert recorded[0] == rows
    assert (is_restored, recorded[3], recorded[2]) == (True, True, None)


def test_a_step_is_whole_with_its_micro_batches_and_what_is_done_between_phases(trace: StepTrace) -> None:
    assert trace.micro_batches == 3
    assert len(trace.items) < MOST_ITEMS
    phases = [item.phase for item in trace.items if isinstance(item, PhaseStart)]
    assert phases == [FORWARD, BACKWARD] * 3 + [UPDATE]
    update = trace.items.index(PhaseStart(UPDATE))
    waits = [at for at, item in enumerate(trace.items) if item == EventWait(None, None)]
    assert waits, "the script's own synchronization, none of the ledger's"
    assert len(waits) == 1
    assert waits[0] < update
    last = max(at for at, item in enumerate(trace.items) if item == PhaseStart(BACKWARD))
    clipped = [trace.works[item.work] for item in trace.items[last:update] if isinstance(item, Kernels)]
    passed = [trace.works[item.work] for item in trace.items[:last] if isinstance(item, Kernels)]
    assert sum(work.launches for work in clipped) > sum(work.launches for work in passed) / 6 + 5


def test_convolutions_are_products_by_type_and_attention_says_its_mask(trace: StepTrace) -> None:
    products: Counter[tuple[Any, str]] = Counter()
    attention: Counter[Any] = Counter()
    for _, item in trace.in_phases():
        if isinstance(item, Kernels):
            work = trace.works[item.work]
            products.update(
                {(shape, dtype): count for (shape, count), dtype in zip(work.products, work.dtypes, strict=True)}
            )
            attention.update(dict(work.attentions))
    positions = 32 * 14 * 14
    assert products[(positions, 16, 27), "tf32"] == 3, "cuDNN rounds fp32 unless it is told otherwise"
    assert products[(16, 27, positions), "tf32"] == 3, "the weight's gradient; the image asks for none"
    assert products[(32, 64, 2304), "fp32"] == 3
    assert products[(32, 2304, 64), "bf16"] == 3
    assert not any(16 * 9 in shape or shape[2] == 9 for shape, _ in products), "a depthwise one is bound by memory"
    kinds = {(kind.head_size, kind.positions, kind.is_causal, kind.is_backward, kind.dtype) for kind in attention}
    assert kinds == {(64, 128, False, False, "bf16"), (64, 128, False, True, "bf16")}


def test_a_fault_of_the_recorder_ends_the_recording_and_not_the_script(emulated: Emulated, recorded: list[Any]) -> None:
    rows, trace, problem, is_restored = emulated(PROGRAM, "recorded", "planted")
    assert (trace, problem, is_restored) == (None, "ValueError: planted", True)
    assert rows == recorded[0]
