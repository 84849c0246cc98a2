"""What torch says of values on the emulated GPU and its host: run by test_values.py, on the emulator."""

import json
from pathlib import Path
from typing import Any

import torch

from zerobench.emulator.inside.values import counts, open_values

GIGABYTE = 10**9


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def large_on_host() -> dict[str, Any]:
    before = resident_bytes()
    weights = torch.randn(35 * GIGABYTE)  # 140 GB
    halves = weights.to(torch.bfloat16)
    weights.mul_(2.0).add_(1.0)
    total = weights.norm() + (weights + 1.0).sum() + halves.float().abs().max()
    out = torch.empty(0)
    torch.mul(weights[: GIGABYTE // 2], 2.0, out=out)
    pinned = halves.pin_memory()
    on_device = torch.zeros(GIGABYTE, dtype=torch.bfloat16, device="cuda")
    weights[:GIGABYTE].copy_(on_device, non_blocking=True)
    shared = torch.zeros(GIGABYTE // 10).share_memory_()
    return {
        "total": float(total),
        "is_nan": bool(torch.isnan(weights).any()),
        "shapes": [list(halves.shape), str(halves.dtype), list(out.shape), pinned.is_pinned(), shared.is_shared()],
        "sort": [str(part.dtype) for part in torch.sort(weights[:GIGABYTE])],
        "resident": resident_bytes() - before,
    }


def small_on_host() -> dict[str, Any]:
    layer = torch.nn.Linear(8, 8)
    torch.nn.init.constant_(layer.weight, 0.5)
    layer(torch.ones(1, 8)).sum().backward()
    gradient, order = layer.weight.grad, torch.randperm(1_000_000)
    assert gradient is not None
    return {
        "gradient": gradient.tolist()[0],
        "order": [int(order.sum()), int(torch.arange(1_000_000)[order][order.argmax()])],
        "nonzero": int(torch.nonzero(torch.arange(2_000_000) % 2).shape[0]),
        "large_parameter": float(torch.nn.Parameter(torch.ones(1024, 1024)).sum()),
    }


def on_device() -> dict[str, Any]:
    labels = torch.randint(1, 100, (8, 4096))
    there = labels.to("cuda")
    dirty = torch.full((1000,), -1, dtype=torch.int64, device="cuda")  # as numbers: not a number
    del dirty
    activations = torch.randn(4096, 4096, device="cuda")
    norms = [torch.tensor(3.0, device="cuda"), torch.tensor(4.0, device="cuda")]
    numbers = torch.arange(3_000, device="cuda").float()
    weights = [torch.nn.Parameter(torch.ones(3, device="cuda")) for _ in range(2)]
    for weight in weights:
        weight.grad = torch.full_like(weight, 2.0)
    norm = torch.nn.utils.clip_grad_norm_(weights, 1.0)
    clipped = [0.0 if weight.grad is None else float(weight.grad[0]) for weight in weights]
    optimizer = torch.optim.AdamW(weights, lr=0.1, weight_decay=0.0, fused=True)
    optimizer.step()
    return {
        "count": [int((there != -100).sum()), bool((there.sum() == labels.sum().cuda()).item())],
        "nonzero": list((there > 0).nonzero().shape),
        "norm_of_norms": float(torch.stack(norms).norm()),
        "activations": [float(activations.norm()), bool(activations.isinf().any()), float(activations.sum() / 0.0)],
        "no_leftovers": float(numbers.sum()) == 0.0,
        "clipped": [round(float(norm), 3), round(clipped[0], 3)],
        "stepped": [round(float(weights[0][0]), 3), float(optimizer.state[weights[0]]["step"])],
        "random": torch.rand(3, device="cuda").tolist(),
    }


def scaler() -> dict[str, Any]:
    layer = torch.nn.Linear(1000, 1000, device="cuda")
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    scale = torch.amp.GradScaler("cuda")
    for _ in range(3):
        scale.scale(layer(torch.ones(5, 1000, device="cuda")).sum()).backward()
        scale.step(optimizer)
        scale.update()
    return {"scale": scale.get_scale()}


def routing() -> dict[str, Any]:
    scores = torch.nn.functional.linear(torch.randn(2048, 4096, device="cuda"), torch.randn(8, 4096, device="cuda"))
    _, chosen = torch.topk(scores.softmax(-1), 2, dim=-1)
    mask = torch.nn.functional.one_hot(chosen, 8)
    known = torch.tensor([[0.1, 0.7, 0.2], [0.6, 0.1, 0.3]], device="cuda")
    return {
        "topk": torch.bincount(chosen.flatten(), minlength=8).tolist(),
        "hot": mask.sum((0, 1)).tolist(),
        "distinct": bool((chosen[:, 0] != chosen[:, 1]).all()),
        "argmax": torch.bincount(torch.argmax(scores, dim=1), minlength=8).tolist(),
        "tokens_of_3": int(torch.where(chosen == 3)[0].shape[0]),
        "known": [torch.topk(known, 1).indices.flatten().tolist(), torch.argmax(known, dim=-1).tolist()],
    }


def rounding() -> dict[str, int]:
    from zerobench.common.vocabulary import Category
    from zerobench.rank.ledger import cuda

    kept, stream = torch.empty(1000, dtype=torch.uint8, device="cuda"), torch.cuda.Stream()
    freed = torch.empty(50_000_000, dtype=torch.uint8, device="cuda")
    freed.record_stream(stream)
    del freed  # allocated no more, and requested until the allocator asks after the stream
    before = torch.cuda.memory_stats()
    found = cuda.composition(torch.device("cuda", 0), [], [], lambda _: None)
    del kept
    return {
        "pending": before["active_bytes.all.current"] - before["allocated_bytes.all.current"],
        "rounding": int(found.live[Category.ALLOCATOR_ROUNDING]),
    }


def main() -> None:
    open_values()
    parts = (large_on_host, small_on_host, on_device, scaler, routing, rounding)
    answer = {part.__name__: part() for part in parts}
    print(json.dumps({**answer, "counts": counts()}))


if __name__ == "__main__":
    main()
