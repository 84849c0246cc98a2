"""Frozen matrices in 4 or 8 bits, with the layout and products of bitsandbytes 0.50 (QLoRA, arXiv:2305.14314).

Implemented here so that they run in every world; tests compare bytes and values with bitsandbytes. nf4: two codes a
byte, a scale for each block of 64 elements, the scales themselves in 8 bits in blocks of 256 about their mean (double
quantisation; bitsandbytes/functional.py, quantize_4bit). Codes of scales are evenly spaced instead of from
bitsandbytes' table, which is only allocated here. The packed codes are stored as the trial's own type, as transformers'
`bnb_4bit_quant_storage` requires for partitioning. int8: a code an element, a scale a row (int8_vectorwise_quant).

A product computes the scales in fp32 and the whole matrix in the trial's type, in forward and again in backward;
forward holds both in addition to its result (backends/default/ops.py, gemm_4bit, as on GPUs beyond 1,536 tokens).
Forward saves the codes themselves (bitsandbytes/autograd/_functions.py, MatMul4Bit and MatMul8bitFp), so that codes
gathered by stage 3 stay until backward. The int8 kernels of GPUs have other temporaries: their input in 8 bits and the
product in int32.
"""

from typing import Any

import torch

from zerobench.config.trial.adapter import BLOCK, SCALES

NF4: tuple[float, ...] = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""Values of the sixteen codes: quantiles of a normal distribution (arXiv:2305.14314, appendix E)."""
_PIECE = 2**20
"""Elements to encode or decode at a time: a multiple of SCALES blocks."""
_WORKED_OUT = 6
"""Bytes an element while it is decoded: half of the int32 number of a pair of values, and the value in fp32."""
_INT8 = 127


class QuantisedLinear(torch.nn.Module):
    """A frozen matrix whose parameter `weight` has its codes; the scales are buffers."""

    scale: torch.Tensor
    scale_of_scales: torch.Tensor
    mean: torch.Tensor
    table: torch.Tensor
    values: torch.Tensor

    def __init__(self, base: Any, sizes: tuple[int, int], kind: str, device: torch.device, dtype: torch.dtype) -> None:
        """Replace `base`, and take over its bias; values are not set."""
        super().__init__()
        self.in_features, self.out_features = sizes
        self.kind, self.dtype, self.bias = kind, dtype, base.bias
        codes = torch.int8 if kind == "int8" else dtype
        num_codes = self.weight_elements // (1 if kind == "int8" else 2 * codes.itemsize)
        if self.weight_elements % BLOCK:
            raise ValueError(
                f"base {kind}: {self.out_features} x {self.in_features} is no multiple of {BLOCK} elements"
            )
        self.weight = torch.nn.Parameter(torch.empty(num_codes, dtype=codes, device=device), requires_grad=False)
        blocks = self.weight_elements // BLOCK
        scales = {"scale": ((self.out_features,), torch.float32)}
        if kind == "nf4":
            scales = {"scale": ((blocks,), torch.uint8), "scale_of_scales": ((-(-blocks // SCALES),), torch.float32)}
            scales |= {
                "mean": ((1,), torch.float32),
                "table": ((256,), torch.float32),
                "values": ((16,), torch.float32),
            }
        for name, (shape, of) in scales.items():
            self.register_buffer(name, torch.empty(shape, dtype=of, device=device))

    @property
    def weight_elements(self) -> int:
        """Number of elements of the matrix."""
        return self.in_features * self.out_features

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Multiply with the dequantised matrix."""
        product: torch.Tensor = _Product.apply(hidden, self.weight, self)  # type: ignore[no-untyped-call]
        return product if self.bias is None else product + self.bias

    def scales(self) -> torch.Tensor:
        """Scales of the codes in fp32."""
        if self.kind == "int8":
            return self.scale
        values: torch.Tensor = torch.ops.zerobench.dequantise_scales(self.scale, self.scale_of_scales, self.mean)
        return values

    def dequantised(self, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """Dequantise to the matrix, [out_features, in_features], in the trial's type."""
        shape = (self.out_features, self.in_features)
        if self.kind == "int8":
            return codes.view(shape).to(self.dtype).mul_((scales / _INT8)[:, None])
        whole: torch.Tensor = torch.ops.zerobench.dequantise_nf4(codes, scales, self.values)
        return whole.view(shape)

    @torch.no_grad()
    def quantise(self, whole: torch.Tensor) -> torch.Tensor:
        """Quantise `whole` to codes for `weight`, and set the scales."""
        if self.kind == "int8":
            torch.amax(whole.view(self.out_features, -1).abs(), 1, out=(scale := self.scale.to(whole.dtype)))
            self.scale.copy_(scale)
            return (whole.view(self.out_features, -1) * (_INT8 / self.scale)[:, None]).round_().to(torch.int8).view(-1)
        self.values.copy_(torch.tensor(NF4))
        torch.linspace(-1, 1, 256, out=self.table)
        flat, device = whole.view(-1), whole.device
        codes = torch.empty(self.weight_elements // 2, dtype=torch.uint8, device=device)
        scales = torch.empty(self.weight_elements // BLOCK, dtype=torch.float32, device=device)
        torch.amax(flat.view(-1, BLOCK).abs(), 1, out=(largest := torch.empty_like(scales, dtype=flat.dtype)))
        scales.copy_(largest)
        self._quantise_scales(scales)
        between = (self.values[1:] + self.values[:-1]) / 2
        for begin in range(0, len(flat), _PIECE):
            some = flat[begin : begin + _PIECE].view(-1, BLOCK) / scales[begin // BLOCK :][: _PIECE // BLOCK, None]
            pairs = torch.bucketize(some.view(-1), between, out_int32=True).to(torch.uint8).view(-1, 2)
            codes[begin // 2 : (begin + _PIECE) // 2].copy_((pairs[:, 0] << 4) | pairs[:, 1])
        return codes.view(self.dtype)

    def _quantise_scales(self, scales: torch.Tensor) -> None:
        """Quantise the scales of blocks to 8 bits, about their mean."""
        torch.mean(scales, 0, keepdim=True, out=self.mean)
        padded = torch.nn.functional.pad(scales - self.mean, (0, -len(scales) % SCALES)).view(-1, SCALES)
        torch.amax(padded.abs(), 1, out=self.scale_of_scales)
        codes = (padded / self.scale_of_scales.clamp(min=1e-30)[:, None] + 1).mul_(127.5).round_()
        self.scale.copy_(codes.view(-1)[: len(scales)])


class _Product(torch.autograd.Function):
    """Product with a quantised matrix; only the other factor gets a gradient."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, codes: torch.Tensor, matrix: QuantisedLinear) -> torch.Tensor:
        ctx.codes, ctx.matrix = codes.view(-1), matrix
        scales = matrix.scales()
        return torch.nn.functional.linear(hidden, matrix.dequantised(codes, scales))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        if not ctx.needs_input_grad[0]:
            return None, None, None
        return torch.matmul(gradient, ctx.matrix.dequantised(ctx.codes, ctx.matrix.scales())), None, None


@torch.library.custom_op("zerobench::dequantise_scales", mutates_args=())
def _dequantise_scales(scale: torch.Tensor, scale_of_scales: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """Dequantise the scales of blocks in one operation, like bitsandbytes' kernel."""
    scales = scale.to(torch.float32).div_(127.5).sub_(1)
    whole = len(scales) // SCALES * SCALES
    scales[:whole].view(-1, SCALES).mul_(scale_of_scales[: whole // SCALES, None])
    scales[whole:].mul_(scale_of_scales[-1:])
    return scales.add_(mean)


@_dequantise_scales.register_fake
def _(scale: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(scale, dtype=torch.float32)


@torch.library.custom_op("zerobench::dequantise_nf4", mutates_args=())
def _dequantise_nf4(codes: torch.Tensor, scales: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Dequantise all elements, to the storage type of the codes, in one operation like bitsandbytes' kernel.

    The kernel allocates only the result. Here each piece is computed in the part of the result that is not written yet,
    so that only the last few elements need memory of their own.
    """
    packed = codes.view(torch.uint8)
    whole = torch.empty(2 * packed.numel(), dtype=codes.dtype, device=codes.device)
    pairs = torch.stack([values.repeat_interleave(16), values.repeat(16)], 1)
    begin = 0
    while left := whole.numel() - begin:
        size = min(_PIECE, left // 4 // BLOCK * BLOCK) or left
        end, nbytes = begin + size, size * _WORKED_OUT
        room = whole[end:] if size < left else torch.empty(nbytes, dtype=torch.uint8, device=codes.device)
        numbers, some = room.view(torch.uint8)[:nbytes].view(torch.int32).split([size // 2, size])
        numbers.copy_(packed[begin // 2 : end // 2])
        torch.index_select(pairs, 0, numbers, out=(values_of := some.view(torch.float32).view(-1, 2)))
        values_of.view(-1, BLOCK).mul_(scales[begin // BLOCK : end // BLOCK, None])
        whole[begin:end].copy_(values_of.view(-1))
        begin = end
    return whole


@_dequantise_nf4.register_fake
def _(codes: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    return torch.empty(2 * codes.numel() * codes.dtype.itemsize, dtype=codes.dtype, device=codes.device)
