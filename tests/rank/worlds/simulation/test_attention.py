"""Attention keeps what the fused kernels keep for the backward pass, and no s x s matrix at any time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest

GPU = "simgpu"
BATCH, LENGTH = 2, 2054
"""Of which 32, 64 and 128 have unlike next multiples."""


@dataclass(frozen=True)
class Case:
    """One attention: heads of queries, heads of keys, head size, type, whether there is an explicit mask."""

    heads: int
    key_heads: int
    dim: int
    dtype: str = "bfloat16"
    mask: bool = False
    capability: str | None = None
    """Compute capability of the GPU, where it matters."""

    @property
    def is_half(self) -> bool:
        return self.dtype in {"bfloat16", "float16"}

    @property
    def cudnn(self) -> bool:
        """The kernel of cuDNN takes it."""
        return self.capability in {"9.0", "10.0"} and self.is_half and self.dim <= 256

    @property
    def flash(self) -> bool:
        """The flash kernel takes it."""
        return self.is_half and not self.mask and not self.cudnn and self.dim <= 256

    @property
    def random_state(self) -> list[int]:
        """Random generator states kept on the device: flash has a state, and a number that it never fills."""
        return [16, 8] if self.flash else [8, 8] if self.cudnn else []

    @property
    def itemsize(self) -> int:
        return 2 if self.is_half else 4

    def tensor_bytes(self, heads: int) -> int:
        """One of q, k, v, the output or a gradient."""
        return BATCH * heads * LENGTH * self.dim * self.itemsize


CASES = {
    "flash": Case(8, 8, 64),
    "flash, grouped queries": Case(8, 2, 64),
    "flash, one key head": Case(6, 1, 80),
    "cuDNN's": Case(8, 8, 64, capability="9.0"),
    "cuDNN's, grouped queries": Case(8, 2, 64, capability="9.0"),
    "cuDNN's with a mask": Case(8, 8, 64, mask=True, capability="9.0"),
    "flash on Ada": Case(8, 8, 64, capability="8.9"),
    "flash in fp16": Case(8, 8, 64, dtype="float16"),
    "cuDNN's in fp16 on Blackwell": Case(8, 8, 64, dtype="float16", capability="10.0"),
    "flash on a Blackwell of workstations": Case(8, 8, 64, capability="12.0"),
    "flash, the largest head": Case(2, 2, 256),
    "cuDNN's largest head": Case(2, 2, 256, capability="9.0"),
    "memory-efficient, a larger head": Case(2, 2, 264),
    "memory-efficient, a larger head on Hopper": Case(2, 2, 264, capability="9.0"),
    "memory-efficient in fp32 on Hopper": Case(8, 8, 64, dtype="float32", capability="9.0"),
    "memory-efficient in fp32": Case(8, 8, 64, dtype="float32"),
    "memory-efficient with a mask": Case(8, 8, 64, mask=True),
}
WITHOUT_KERNEL = Case(8, 2, 64, dtype="float32")
"""Grouped queries that the flash kernel does not take; the memory-efficient one takes none."""


def attend(case: Case, batch: int = BATCH) -> dict[str, Any]:
    """Run attention forward and backward as a model on the simulated GPU does."""
    import torch
    import torch.nn.functional as F  # noqa: N812 -- torch's own habit

    from zerobench.rank.worlds.simulation import attention
    from zerobench.rank.worlds.simulation.allocator import SimulatedCounter
    from zerobench.rank.worlds.simulation.tensors import SimulatedTensors

    flops: list[int] = []
    attention.install(lambda counted, _: flops.append(counted), case.capability)
    tensors = SimulatedTensors(lambda _flops: None)
    counter = SimulatedCounter(lambda: None, tensors)
    saved: dict[int, int] = {}
    dtype = getattr(torch, case.dtype)

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        saved[storage._cdata] = storage.nbytes()
        return tensor

    def make(heads: int) -> torch.Tensor:
        made = torch.empty(batch, LENGTH, heads, case.dim, dtype=dtype, device=GPU).transpose(1, 2)
        return made.detach().requires_grad_()

    with tensors, torch.autograd.set_multithreading_enabled(False):
        query, key, value = make(case.heads), make(case.key_heads), make(case.key_heads)
        mask = torch.empty(batch, 1, LENGTH, LENGTH, dtype=dtype, device=GPU) if case.mask else None
        counter.see([query, key, value, mask])
        counter.start_phase()
        with counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            output = F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=case.key_heads != case.heads
            )
        born = [delta for _, delta in counter.events]
        shape = (tuple(output.shape), output.transpose(1, 2).is_contiguous(), str(output.dtype))
        gradient = torch.empty_like(output)
        counter.see(gradient)
        counter.start_phase()
        with counter:
            output.backward(gradient)
        backward = [delta for _, delta in counter.events]
        gradients = [t.grad is not None and t.grad.shape == t.shape for t in (query, key, value)]
    return {
        "born": born,
        "saved": sorted(saved.values()),
        "output": shape,
        "backward": backward,
        "gradients": gradients,
        "flops": flops,
    }


@pytest.fixture(scope="module")
def attended(in_fork):
    return {name: in_fork(attend, case) for name, case in CASES.items()}


def logsumexp_bytes(case: Case) -> int:
    """fp32, a number a query and head; the memory-efficient kernel alone rounds the queries up to 32."""
    rows = LENGTH if case.flash or case.cudnn else -(-LENGTH // 32) * 32
    return 4 * BATCH * case.heads * rows


@pytest.mark.parametrize("name", CASES)
def test_the_forward_pass_saves_q_k_v_the_output_and_the_logsumexp(attended, name):
    case, seen = CASES[name], attended[name]
    expected = [case.tensor_bytes(case.heads)] * 2 + [case.tensor_bytes(case.key_heads)] * 2
    expected += [logsumexp_bytes(case), *case.random_state]
    if case.mask:
        expected.append(BATCH * LENGTH * LENGTH * case.itemsize)  # which the model made
    assert seen["saved"] == sorted(expected)


@pytest.mark.parametrize("name", CASES)
def test_the_forward_pass_makes_the_output_and_the_logsumexp_and_nothing_beside(attended, name):
    case, seen = CASES[name], attended[name]
    assert seen["born"] == [case.tensor_bytes(case.heads), logsumexp_bytes(case), *case.random_state]
    assert seen["output"] == ((BATCH, case.heads, LENGTH, case.dim), True, f"torch.{case.dtype}")


@pytest.mark.parametrize("name", CASES)
def test_the_backward_pass_peaks_at_the_kernels_accumulators_and_gradients(attended, name):
    case, seen = CASES[name], attended[name]
    rows = -(-LENGTH // 128) * 128 if case.flash else LENGTH
    delta = 4 * BATCH * case.heads * rows
    accumulator = 4 * BATCH * rows * case.heads * -(-case.dim // 32) * 32 if case.flash or case.cudnn else 0
    of_queries, of_keys = case.tensor_bytes(case.heads), case.tensor_bytes(case.key_heads)
    peak = delta + accumulator + 3 * of_queries  # those of keys and values are for every query head
    if case.cudnn:
        grouped = 0 if case.key_heads == case.heads else 2 * of_queries + 256  # an H100's
        peak = delta + accumulator + of_queries + 2 * of_keys + grouped
    elif case.key_heads != case.heads:
        peak += 2 * of_keys  # and are then summed over a group's query heads
    running = list(itertools.accumulate(seen["backward"]))
    assert max(running) == peak
    assert seen["gradients"] == [True, True, True]


@pytest.mark.parametrize("name", CASES)
def test_only_the_gradients_outlive_the_backward_pass(attended, name):
    case, seen = CASES[name], attended[name]
    gradients = case.tensor_bytes(case.heads) + 2 * case.tensor_bytes(case.key_heads)
    kept = sum(seen["backward"])
    # What the forward pass saved is let go within it: the logsumexp and the random state.
    assert kept == gradients - logsumexp_bytes(case) - sum(case.random_state)


@pytest.mark.parametrize("name", CASES)
def test_nothing_as_large_as_an_s_by_s_matrix_is_ever_made(attended, name):
    case, seen = CASES[name], attended[name]
    matrix = BATCH * case.heads * LENGTH * LENGTH * case.itemsize
    assert max(seen["born"] + seen["backward"]) < matrix / 2


@pytest.mark.parametrize("name", CASES)
def test_flops_are_those_of_torchs_own_formulas(attended, name):
    """Two products forward, five backward, over the whole s x s square (torch.utils.flop_counter)."""
    case, seen = CASES[name], attended[name]
    product = 2 * BATCH * case.heads * LENGTH * LENGTH * case.dim
    assert seen["flops"] == [2 * product, 5 * product]


def test_heads_that_flash_does_not_take_are_padded_to_the_next_multiple_of_8(in_fork):
    seen = in_fork(attend, Case(8, 8, 34))
    padded = BATCH * 8 * LENGTH * 40 * 2
    assert seen["born"].count(padded) == 4  # q, k, v and the output
    assert seen["output"][0] == (BATCH, 8, LENGTH, 34)


def test_heads_of_no_multiple_of_16_bytes_in_fp32_keep_their_s_by_s_matrices(in_fork):
    case = Case(8, 8, 34, dtype="float32")
    assert max(in_fork(attend, case)["saved"]) == BATCH * case.heads * LENGTH * LENGTH * case.itemsize


def test_grouped_queries_that_no_kernel_takes_keep_their_s_by_s_matrices(in_fork):
    seen = in_fork(attend, WITHOUT_KERNEL)
    matrix = BATCH * WITHOUT_KERNEL.heads * LENGTH * LENGTH * WITHOUT_KERNEL.itemsize
    assert max(seen["saved"]) == matrix
    assert seen["output"][0] == (BATCH, WITHOUT_KERNEL.heads, LENGTH, WITHOUT_KERNEL.dim)
    assert seen["gradients"] == [True, True, True]


@pytest.mark.parametrize("capability", ["8.9", "9.0"])
def test_more_sequences_than_flash_has_a_grid_for_are_refused_as_on_a_gpu(in_fork, capability):
    """CuDNN is asked for no more either; the memory-efficient kernel takes them in pieces."""
    assert in_fork(attend, Case(1, 1, 8, capability=capability), 65_535)["output"][0][0] == 65_535
    with pytest.raises(RuntimeError, match=r"invalid configuration argument: attention over 65,536 sequences"):
        in_fork(attend, Case(1, 1, 8, capability=capability), 65_536)
    assert in_fork(attend, Case(1, 1, 8, dtype="float32", capability=capability), 65_536)["gradients"] == [True] * 3


def test_heads_that_cudnn_does_not_take_go_to_flash_which_pads_them(in_fork):
    case = Case(8, 8, 36, capability="9.0")
    padded = BATCH * 8 * LENGTH * 40 * 2
    assert in_fork(attend, case)["born"] == [padded, padded, padded, padded, 4 * BATCH * 8 * LENGTH, 16, 8]


def test_cudnn_takes_as_many_sequences_as_it_is_asked_for_at_most(in_fork):
    """What it keeps of the random generator is not what flash keeps."""
    saved = in_fork(attend, Case(1, 1, 8, capability="9.0"), 65_535)["saved"]
    assert saved[:2] == [8, 8]
    assert in_fork(attend, Case(1, 1, 8, capability="8.9"), 65_535)["saved"][:2] == [8, 16]
