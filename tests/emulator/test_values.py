"""Values read back from the emulated GPU: what was copied there is there, what a kernel would have computed is zero."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tools.emulated import Emulated

PROGRAM = """
import json, time, torch
said = {}
def leave_sevens():
    "Fill blocks that the allocator gives to the next small tensors."
    kept = [torch.full((64,), 7, dtype=torch.long).cuda() for _ in range(64)]

big, model = torch.empty(1 << 20, device="cuda"), torch.nn.Linear(8, 8).cuda()
leave_sevens(); said["sum"] = big.sum().item()
leave_sevens(); said["overflow"] = (big.isnan().any() | big.isinf().any()).item()
leave_sevens(); said["norm"] = torch.linalg.vector_norm(torch.stack([big.norm(), big.norm()])).item()
leave_sevens(); said["zeros"] = torch.zeros(4, device="cuda").tolist()
leave_sevens(); said["strided"] = (torch.empty(4, 4, device="cuda").t() * 2)[:, ::2].neg().max().item()
leave_sevens(); model(torch.empty(2, 8, device="cuda")).sum().backward()
said["clipped"] = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
leave_sevens(); said["count"] = torch.zeros(100, device="cuda").nonzero().shape[0]

copied = torch.arange(4).cuda()
computed = copied.max() + 1
said["copied"] = copied.tolist()
said["size"] = max([torch.tensor([5]).cuda(), torch.tensor([5]).cuda()]).item()
halves = torch.arange(16384, dtype=torch.float32)
said["at_the_limit"] = halves.cuda().cpu().equal(halves)
said["beyond"] = torch.ones(16385).cuda().cpu()[0].item()
time.sleep(0.05)
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(emulated: Emulated) -> dict[str, Any]:
    return dict(emulated(PROGRAM))


@pytest.mark.parametrize("value", ["sum", "overflow", "norm", "strided", "clipped", "count"])
def test_what_a_kernel_would_have_written_is_zero_whatever_lay_there_before(said, value):
    assert said[value] == 0


def test_a_tensor_of_zeros_is_one(said):
    assert said["zeros"] == [0, 0, 0, 0]


def test_what_was_copied_to_the_device_stays_when_kernels_have_read_it(said):
    assert said["copied"] == [0, 1, 2, 3]
    assert said["size"] == 5


def test_copies_up_to_64_kib_are_real_and_larger_ones_move_nothing(said):
    assert said["at_the_limit"]
    assert said["beyond"] != 1
