"""What one GPU achieves, kernel by kernel: the classes that the time model knows (zerobench/estimate/clock/kernels.py).

    python benchmarks/gpu_campaign/kernel_rates.py [--only PART,...] [--out FILE.csv]

Matrix products of a linear layer's three passes over token counts and layer shapes, causal attention forward and
backward, elementwise work by size, AdamW's step, copies to and from the host, and how fast the host launches. Each is
the median of five timings of at least 5 ms by CUDA events, on random values. Half a minute.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import torch
from torch.nn.functional import cross_entropy, linear, scaled_dot_product_attention, silu

from benchmarks.gpu_campaign.measured import ADAM_BYTES, Kernel

ROOT = Path(__file__).resolve().parent.parent.parent
TOKENS = (256, 512, 1024, 2048, 4096, 8192, 16384)
LAYERS = (
    *((768, 768), (768, 3072)),
    *((2048, 2048), (2048, 5632), (5632, 2048), (2048, 32000)),
    *((4096, 4096), (4096, 11008), (11008, 4096), (4096, 32000)),
    *((5120, 5120), (5120, 13824), (8192, 8192), (8192, 28672)),
)
"""Inputs and outputs of linear layers: GPT-2's, and those of Llamas of 1B, 7B, 13B and 70B."""
VOCABULARIES = (50257, 50258, 50260, 50264, 50304)
"""GPT-2's words, and as many more as make rows of 4, 8, 16 and 128 bytes' multiples."""
ATTENTION = (
    *((1, 12, 64, 1024), (8, 12, 64, 1024), (1, 32, 64, 2048), (4, 32, 64, 2048)),
    *((1, 32, 128, 512), (1, 32, 128, 2048), (4, 32, 128, 2048), (1, 32, 128, 4096), (1, 32, 128, 8192)),
    *((1, 32, 128, 16384), (2, 40, 128, 4096)),
)
"""Sequences, heads, their size, positions."""
SAMPLES, SAMPLE_S = 5, 0.005


def device_s(work: Callable[..., object], *arguments: Any) -> float:
    """Seconds of `work` on the device, one after another without a gap."""
    call = partial(work, *arguments)
    call()
    count = max(1, min(2000, round(SAMPLE_S / _sample_s(call, 1))))
    return statistics.median(_sample_s(call, count) for _ in range(SAMPLES))


def _sample_s(work: Callable[[], object], count: int) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    for _ in range(count):
        work()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / count


def host_s(work: Callable[..., object], *arguments: Any, count: int = 300) -> float:
    """Seconds in which the host issues `work`."""
    work(*arguments)
    torch.cuda.synchronize()
    times = []
    for _ in range(SAMPLES):
        begun = time.perf_counter()
        for _ in range(count):
            work(*arguments)
        times.append((time.perf_counter() - begun) / count)
        torch.cuda.synchronize()
    return statistics.median(times)


def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Random values on the device."""
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)


def products() -> Iterator[Kernel]:
    """A linear layer's forward pass, and its backward by input and by weight."""
    yield from _products(LAYERS, TOKENS)


def heads() -> Iterator[Kernel]:
    """GPT-2's last product, by how many words it is padded to; and an odd size on either side of a layer."""
    yield from _products([*((768, words) for words in VOCABULARIES), (768, 3073), (770, 3072)], (8192,))


def _products(layers: Iterable[tuple[int, int]], token_counts: Iterable[int]) -> Iterator[Kernel]:
    for inputs, outputs in layers:
        weight = drawn(outputs, inputs)
        for tokens in token_counts:
            x, gradient = drawn(tokens, inputs), drawn(tokens, outputs)
            flops = 2.0 * tokens * inputs * outputs
            name = f"{tokens}x{outputs}x{inputs}"
            yield Kernel("product forward", name, device_s(linear, x, weight), flops, 0)
            yield Kernel("product by input", name, device_s(torch.matmul, gradient, weight), flops, 0)
            yield Kernel("product by weight", name, device_s(torch.matmul, gradient.t(), x), flops, 0)


def adapters() -> Iterator[Kernel]:
    """A LoRA's two products forward, of rank 16, in the model's type and in the fp32 that PEFT widens adapters to."""
    for dtype in (torch.bfloat16, torch.float32):
        for tokens in (2048, 8192, 16384):
            for inputs, outputs in ((4096, 16), (16, 4096), (4096, 4096)):
                x, weight = drawn(tokens, inputs, dtype=dtype), drawn(outputs, inputs, dtype=dtype)
                name = f"{tokens}x{outputs}x{inputs}"
                kind = f"adapter {str(dtype).removeprefix('torch.')}"
                moved = dtype.itemsize * (x.numel() + weight.numel() + tokens * outputs)
                yield Kernel(kind, name, device_s(linear, x, weight), 2.0 * tokens * inputs * outputs, moved)
                gradient = drawn(tokens, outputs, dtype=dtype)
                seconds = device_s(torch.matmul, gradient.t(), x)
                yield Kernel(f"{kind} by weight", name, seconds, 2.0 * tokens * inputs * outputs, moved)


def attention() -> Iterator[Kernel]:
    """Causal attention; FLOPs as torch counts them, which the mask halves."""
    causal = partial(scaled_dot_product_attention, is_causal=True)
    for sequences, heads, size, positions in ATTENTION:
        shape = (sequences, heads, positions, size)
        q, k, v = (drawn(*shape).requires_grad_() for _ in range(3))
        out = causal(q, k, v)
        gradient, product = drawn(*shape), 2.0 * sequences * heads * positions**2 * size
        name = "x".join(map(str, shape))
        forward = device_s(causal, q, k, v)
        yield Kernel(f"attention forward {type(out.grad_fn).__name__}", name, forward, 2 * product, 0)
        backward = device_s(partial(torch.autograd.grad, retain_graph=True), out, (q, k, v), gradient)
        yield Kernel("attention backward", name, backward, 5 * product, 0)


def elementwise() -> Iterator[Kernel]:
    """Work that moves bytes: what is read plus what is written."""
    for numel in (1 << 16, 1 << 19, 1 << 21, 1 << 23, 1 << 25, 1 << 28):
        a, b = drawn(numel), drawn(numel)
        out = torch.empty_like(a)
        yield Kernel("copy", str(numel), device_s(out.copy_, a), 0, 4.0 * numel)
        yield Kernel("add", str(numel), device_s(partial(torch.add, out=out), a, b), 0, 6.0 * numel)
        yield Kernel("fill", str(numel), device_s(out.zero_), 0, 2.0 * numel)
        yield Kernel("cast to fp32", str(numel), device_s(a.float), 0, 6.0 * numel)
        yield Kernel("silu", str(numel), device_s(silu, a), 0, 4.0 * numel)
    for rows, hidden in ((2048, 2048), (8192, 2048), (2048, 4096), (8192, 4096)):
        x = drawn(rows, hidden).float()
        yield Kernel("norm in fp32, by parts", f"{rows}x{hidden}", device_s(_norm, x), 0, 20.0 * x.numel())
    for rows, words in ((2048, 32000), (8192, 32000), (2048, 128256)):
        logits, labels = drawn(rows, words), torch.randint(words, (rows,), device="cuda")
        held = logits.float().requires_grad_()
        yield Kernel("logits to fp32", f"{rows}x{words}", device_s(logits.float), 0, 6.0 * held.numel())
        forward = device_s(cross_entropy, held, labels)
        yield Kernel("loss forward", f"{rows}x{words}", forward, 0, 8.0 * held.numel())
        loss = cross_entropy(held, labels)
        backward = device_s(partial(torch.autograd.grad, retain_graph=True), loss, held)
        yield Kernel("loss backward", f"{rows}x{words}", backward, 0, 8.0 * held.numel())


def _norm(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def optimizers() -> Iterator[Kernel]:
    """AdamW over fp32."""
    numel = 1 << 27
    parameter = _parameter(numel)
    fused, foreach = torch.optim.AdamW([parameter], fused=True), torch.optim.AdamW([parameter], foreach=True)
    yield Kernel("AdamW fused", str(numel), device_s(fused.step), 0, ADAM_BYTES * numel)
    yield Kernel("AdamW foreach", str(numel), device_s(foreach.step), 0, ADAM_BYTES * numel)


def fused_adam() -> Iterator[Kernel]:
    """DeepSpeed's own, which wants a compiler."""
    from deepspeed.ops.adam import FusedAdam  # noqa: PLC0415

    parameter = _parameter(1 << 27)
    seconds = device_s(FusedAdam([parameter]).step)
    yield Kernel("DeepSpeed FusedAdam", str(parameter.numel()), seconds, 0, ADAM_BYTES * parameter.numel())


def _parameter(numel: int) -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(drawn(numel, dtype=torch.float32))
    parameter.grad = drawn(numel, dtype=torch.float32)
    return parameter


def host_optimizer() -> Iterator[Kernel]:
    """DeepSpeed's CPUAdam on this machine's cores."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam  # noqa: PLC0415

    numel = 1 << 28
    parameter = torch.nn.Parameter(torch.zeros(numel))
    parameter.grad = torch.full((numel,), 1e-3)
    step = DeepSpeedCPUAdam([parameter]).step
    step()
    times = []
    for _ in range(SAMPLES):
        begun = time.perf_counter()
        step()
        times.append(time.perf_counter() - begun)
    yield Kernel("CPUAdam", f"{numel} on {torch.get_num_threads()} threads", min(times), 0, ADAM_BYTES * numel)


def copies() -> Iterator[Kernel]:
    """Between host and device."""
    for numel in (1 << 20, 1 << 24, 1 << 28):
        device = torch.empty(numel, dtype=torch.uint8, device="cuda")
        for name in ("pinned", "pageable"):
            host = torch.zeros(numel, dtype=torch.uint8, pin_memory=name == "pinned")
            into, out_of = (
                device_s(partial(device.copy_, non_blocking=True), host),
                device_s(partial(host.copy_, non_blocking=True), device),
            )
            yield Kernel(f"to device, {name}", str(numel), into, 0, numel)
            yield Kernel(f"to host, {name}", str(numel), out_of, 0, numel)
    a, b = (torch.zeros(1 << 28) for _ in range(2))
    begun = time.perf_counter()
    for _ in range(5):
        a.copy_(b)
    yield Kernel("host copy", f"{1 << 28} fp32", (time.perf_counter() - begun) / 5, 0, 8.0 * a.numel())


def launches() -> Iterator[Kernel]:
    """How fast the host issues work that takes the device no time."""
    x, weight = drawn(8, 64), drawn(64, 64)
    yield Kernel("host: add_", "8x64", host_s(x.add_, 1.0), 0, 0)
    yield Kernel("host: linear", "8x64x64", host_s(linear, x, weight), 0, 0)
    yield from _block_launches()


def _block_launches() -> Iterator[Kernel]:
    from transformers import LlamaConfig, LlamaModel  # noqa: PLC0415

    for layers in (2, 10):
        config = LlamaConfig(hidden_size=256, intermediate_size=512, num_hidden_layers=layers, num_attention_heads=4)
        config.use_cache = False
        model = LlamaModel(config).to("cuda", torch.bfloat16)
        ids = torch.zeros(1, 32, dtype=torch.long, device="cuda")
        yield Kernel("host: Llama forward", f"{layers} layers", host_s(model, ids, count=20), 0, 0)
        yield Kernel(
            "host: Llama forward and backward", f"{layers} layers", host_s(_passes, model, ids, count=20), 0, 0
        )


def _passes(model: Any, ids: torch.Tensor) -> None:
    model(ids).last_hidden_state.sum().backward()


def main() -> None:
    """Measure all, one line each, and keep them; what fails is said and the rest goes on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "kernel_rates.csv")
    parser.add_argument("--only", help="these parts alone, with commas between")
    asked = parser.parse_args()
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    parts = (
        launches,
        copies,
        products,
        heads,
        adapters,
        attention,
        elementwise,
        optimizers,
        fused_adam,
        host_optimizer,
    )
    with asked.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            [*(field.name for field in fields(Kernel)), "tera_per_s", torch.cuda.get_device_name(), torch.__version__]
        )
        for part in parts:
            if asked.only is not None and part.__name__ not in asked.only.split(","):
                continue
            try:
                for kernel in part():
                    shown = replace(kernel, seconds=float(f"{kernel.seconds:.4g}"))
                    writer.writerow([*astuple(shown), f"{kernel.tera_per_s:.5g}"])
                    file.flush()
            except Exception as error:  # noqa: BLE001 - the machine is lent for minutes: one part's end is not the others'
                print(f"{part.__name__}: {error!r}"[:500], file=sys.stderr)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
