"""AdamW with both moments in 8 bits, in blocks of 256 elements with one scale each (Dettmers et al., arXiv 2110.02861).

States have bitsandbytes' layout (bitsandbytes/optim/optimizer.py, Optimizer2State): a code of one byte an element, the
largest magnitude of each block in fp32, and tensors of fewer than 4,096 elements in fp32. Codes do not use its table:
they are the square root of the first moment over its block's largest, and the fourth root of the second, so that a
small second moment, by which the update is divided, hardly ever becomes zero. Operations are the same on all devices.
"""

from collections.abc import Iterator
from typing import Any

import torch

from zerobench.config.trial.optimizers import OPTIMIZERS, TORCH_NAMES, Optimizer
from zerobench.config.trial.trial import HyperparameterSpec
from zerobench.rank.optimizers import TensorByTensor

BLOCK = OPTIMIZERS[Optimizer.ADAMW_8BIT].states[0].block_elements or 1
LEAST = OPTIMIZERS[Optimizer.ADAMW_8BIT].states[0].least_elements
PIECE = OPTIMIZERS[Optimizer.ADAMW_8BIT].temporaries.piece_elements or BLOCK
"""Elements to decode at a time: a multiple of BLOCK."""
_SMALLEST = torch.finfo(torch.float32).tiny
"""Scale of a block of zeros."""


class AdamW8bit(TensorByTensor):
    """AdamW with 8-bit states; decoupled weight decay and bias corrections as in torch.optim.AdamW."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load, and restore the type of codes: torch casts them to the parameter's type (torch/optim/optimizer.py)."""
        super().load_state_dict(state_dict)
        for state in self.state.values():
            for name in ("state1", "state2") if "absmax1" in state else ():
                state[name] = state[name].to(torch.uint8)

    def update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        """Update one tensor, piece by piece."""
        state = self.state[parameter]
        if not state:
            state.update(_new(parameter))
        state["step"] += 1
        _update(parameter.view(-1), gradient.reshape(-1), state, group)


def _new(parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    elements, device = parameter.numel(), parameter.device
    step = torch.zeros((), dtype=torch.float32)
    if elements < LEAST:
        return {"step": step, "state1": torch.zeros_like(parameter), "state2": torch.zeros_like(parameter)}
    codes = {name: torch.zeros_like(parameter, dtype=torch.uint8) for name in ("state1", "state2")}
    codes["state1"] += 128  # the code of zero, where there is a sign
    blocks = -(-elements // BLOCK)
    scales = {name: torch.zeros(blocks, dtype=torch.float32, device=device) for name in ("absmax1", "absmax2")}
    return {"step": step, **codes, **scales}


def _update(
    parameter: torch.Tensor, gradient: torch.Tensor, state: dict[str, torch.Tensor], group: dict[str, Any]
) -> None:
    parameter.mul_(1 - group["lr"] * group["weight_decay"])
    beta1, beta2 = group["betas"]
    if "absmax1" not in state:
        first, second = (state[name].view(-1) for name in ("state1", "state2"))
        _average(first, second, gradient, beta1, beta2)
        _move(parameter, first, second.clone(), state["step"], group)
        return
    codes = [state[name].view(-1) for name in ("state1", "state2")]
    for begin, end in _pieces(parameter.numel()):
        scales = [state[name][begin // BLOCK : -(-end // BLOCK)] for name in ("absmax1", "absmax2")]
        first = _decoded_first(codes[0][begin:end], scales[0])
        second = _decoded_second(codes[1][begin:end], scales[1])
        _average(first, second, gradient[begin:end], beta1, beta2)
        _encode_first(first, codes[0][begin:end], scales[0])
        _encode_second(second, codes[1][begin:end], scales[1])
        _move(parameter[begin:end], first, second, state["step"], group)
        del first, second  # before those of the next piece are allocated


def _pieces(elements: int) -> Iterator[tuple[int, int]]:
    """Bounds of pieces of whole blocks; a partial last block is a piece of its own."""
    whole = elements // BLOCK * BLOCK
    for begin in range(0, whole, PIECE):
        yield begin, min(begin + PIECE, whole)
    if whole < elements:
        yield whole, elements


def _average(first: torch.Tensor, second: torch.Tensor, gradient: torch.Tensor, beta1: float, beta2: float) -> None:
    first.lerp_(gradient, 1 - beta1)
    second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)


def _move(
    parameter: torch.Tensor, first: torch.Tensor, second: torch.Tensor, step: torch.Tensor, group: dict[str, Any]
) -> None:
    """Move the parameter as torch/optim/adam.py does; `second` becomes the denominator. Corrections stay tensors, since
    they have no value in a simulation.
    """
    beta1, beta2 = group["betas"]
    corrected = second.sqrt_().div_((1 - beta2**step).sqrt()).add_(group["eps"]).mul_(1 - beta1**step)
    parameter.addcdiv_(first, corrected, value=-group["lr"])


def _block_view(tensor: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return tensor.view(len(scale), -1)


def _decoded_first(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    root = codes.to(torch.float32).sub_(128).div_(127)
    root.mul_(root.abs())
    _block_view(root, scale).mul_(scale[:, None])
    return root


def _decoded_second(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    root = codes.to(torch.float32).div_(255).pow_(4)
    _block_view(root, scale).mul_(scale[:, None])
    return root


def _rescale(moment: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Divide each block by its largest magnitude, which becomes its scale."""
    blocks = _block_view(moment, scale)
    torch.linalg.vector_norm(blocks, ord=float("inf"), dim=1, out=scale)
    return (blocks / scale.clamp_(min=_SMALLEST)[:, None]).view(-1)


def _encode_first(moment: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor) -> None:
    signed = _rescale(moment, scale)
    root = signed.abs().sqrt_().mul_(127).round_()
    codes.copy_(root.copysign_(signed).add_(128))


def _encode_second(moment: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor) -> None:
    codes.copy_(_rescale(moment, scale).pow_(0.25).mul_(255).round_())


def make(groups: list[dict[str, Any]], h: HyperparameterSpec) -> torch.optim.Optimizer:
    """Make AdamW8bit with the trial's hyperparameters."""
    return AdamW8bit(groups, h.torch_values(*TORCH_NAMES))
