"""Microseconds of Python that the host needs a block, by engine: `issue` in zerobench/estimate/clock/rates.yaml.

    python benchmarks/timing/host_python.py [gpt2] [ENGINE ...]    # half a minute each, by `zerobench setup emulator`

A narrow Llama, or GPT-2, of 4 and of 16 blocks trains on an emulated GPU, whose kernels take no time: what is left is
the host's. The difference a block, in processor time, less what as many single operations take there, is Python. The
launches of a block are those of simulated steps.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

FEW, MANY = 4, 16
PHASES = ("forward", "backward", "update")
UNTIMED, TIMED, OPERATIONS = 3, 10, 2000
GPU = "h100"
OWN: dict[str, dict[str, Any]] = {
    "llama": {"intermediate_size": 512},
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
}
TENSORS = {"llama": 9, "gpt2": 12}
"""Of a block."""


def main() -> None:
    """Each engine's Python beside what is shipped."""
    from zerobench.estimate.clock.host import block_issue  # noqa: PLC0415 -- not in the emulator's environment
    from zerobench.estimate.clock.rates import shipped_rates  # noqa: PLC0415

    family, *engines = sys.argv[1:] if "gpt2" in sys.argv[1:2] else ["llama", *sys.argv[1:]]
    for engine in engines or [name for name in shipped_rates().issue if "-" not in name]:
        few, many = (_measured(family, engine, layers) for layers in (FEW, MANY))
        issue = block_issue(engine, is_gated=family == "llama", tensors=TENSORS[family])._asdict()
        for phase in PHASES:
            python_us, launches = issue[phase]
            block_us = (many[phase] - few[phase]) / (MANY - FEW)
            print(
                f"{engine} {phase}: {block_us - launches * many['operation']:.0f} us a block, shipped {python_us:.0f}"
            )


def _measured(family: str, engine: str, layers: int) -> dict[str, float]:
    """Microseconds of a step's phases, and of one operation, in a process on the emulated GPU."""
    from zerobench.config.hardware.hardware import known_gpu  # noqa: PLC0415
    from zerobench.emulator.emulator import find_emulator  # noqa: PLC0415
    from zerobench.emulator.gpu import EmulatedGpu  # noqa: PLC0415

    emulator = find_emulator()
    with tempfile.TemporaryDirectory() as folder:
        added = emulator.variables(EmulatedGpu.build(known_gpu(GPU)), 1, Path(folder) / "account")
        command = [str(emulator.python), __file__, "--inside", family, engine, str(layers)]
        ran = subprocess.run(
            command, env={**os.environ, **added}, cwd=folder, capture_output=True, text=True, check=True
        )
    return dict(json.loads(ran.stdout.splitlines()[-1]))


def inside(family: str, engine: str, layers: int) -> dict[str, float]:
    """The same in this process."""
    import torch  # noqa: PLC0415

    tensor = torch.zeros(8, device="cuda")
    begun = time.process_time()
    for _ in range(OPERATIONS):
        tensor.add_(1)
    found = {"operation": 1e6 * (time.process_time() - begun) / OPERATIONS}
    forward, backward, update = _engine(family, engine, layers)
    times: dict[str, list[float]] = {phase: [] for phase in PHASES}

    def timed(phase: str, work: Callable[..., Any], *arguments: Any) -> Any:
        begun = time.process_time()
        result = work(*arguments)
        torch.cuda.synchronize()
        times[phase].append(1e6 * (time.process_time() - begun))
        return result

    for _ in range(UNTIMED + TIMED):
        timed("backward", backward, timed("forward", forward))
        timed("update", update)
    return found | {phase: statistics.median(taken[UNTIMED:]) for phase, taken in times.items()}


def _engine(family: str, engine: str, layers: int) -> tuple[Callable[[], Any], Callable[[Any], Any], Callable[[], Any]]:
    """A step's forward pass, backward pass and update."""
    import torch  # noqa: PLC0415
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415

    config = AutoConfig.for_model(
        family,
        hidden_size=256,
        num_attention_heads=4,
        vocab_size=1024,
        num_hidden_layers=layers,
        tie_word_embeddings=True,
        use_cache=False,
        **OWN[family],
    )
    with torch.device("cuda"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.train()
    ids = torch.randint(0, 1000, (1, 128), device="cuda")
    if engine.startswith("zero"):
        return _deepspeed(model, ids, int(engine.removeprefix("zero")))
    if engine != "single":
        torch.distributed.init_process_group("nccl", init_method="tcp://127.0.0.1:29531", rank=0, world_size=1)
        model = _wrapped(model, engine)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    clip = partial(torch.nn.utils.clip_grad_norm_, model.parameters()) if engine != "fsdp" else model.clip_grad_norm_

    def update() -> None:
        clip(1.0)
        optimizer.step()
        optimizer.zero_grad()

    return lambda: model(input_ids=ids, labels=ids).loss, lambda loss: loss.backward(), update


def _wrapped(model: Any, engine: str) -> Any:
    import torch  # noqa: PLC0415
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision  # noqa: PLC0415
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy  # noqa: PLC0415

    if engine == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model, device_ids=[0])
    blocks = next(module for module in model.modules() if isinstance(module, torch.nn.ModuleList))
    policy = partial(transformer_auto_wrap_policy, transformer_layer_cls={type(blocks[0])})
    precision = MixedPrecision(torch.bfloat16, torch.float32)
    return FullyShardedDataParallel(model.float(), auto_wrap_policy=policy, mixed_precision=precision, device_id=0)


def _deepspeed(model: Any, ids: Any, stage: int) -> tuple[Callable[[], Any], Callable[[Any], Any], Callable[[], Any]]:
    import deepspeed  # noqa: PLC0415

    # torch's Adam: DeepSpeed's wants a compiler of CUDA's
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
        "steps_per_print": 10**9,
    }
    engine = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)[0]
    return lambda: engine(input_ids=ids, labels=ids).loss, engine.backward, engine.step


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29532")
        print(json.dumps(inside(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
    else:
        main()
