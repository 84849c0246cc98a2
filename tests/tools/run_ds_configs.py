"""A bare DeepSpeed training script, without zerobench: a few steps for each of several configurations.

    deepspeed --num_accelerators 2 tests/tools/run_ds_configs.py CONFIGS.json RESULTS.json

CONFIGS.json has DeepSpeed configurations by name, and the names of those whose peaks are asked for; rank 0 writes what
it saw of each to RESULTS.json. Started by
the deepspeed launcher; all configurations share one process, since starting it is what takes long.
"""

import gc
import json
import os
import sys
import traceback
import weakref
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed import comm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

WIDTH = 1024
STEPS = 3
STEPS_FOR_MEMORY = 5
"""More steps, for their peaks alone: gloo's threads let go of a reduced tensor when they get to it, so that any one
step's peak may hold a gradient that the algorithm was done with. The least of several steps' is what it needs.
"""


class CountStorages(TorchDispatchMode):
    """Bytes of all tensor storages made while it is active, those alive now and the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.live_bytes = self.peak_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self.note, out)
        return out

    def note(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.live or tensor.is_meta:  # DeepSpeed keeps shapes as meta tensors, which hold nothing
            return
        self.live[key] = storage.nbytes()
        self.live_bytes += storage.nbytes()
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        weakref.finalize(storage, self.forget, key)

    def forget(self, key: int) -> None:
        self.live_bytes -= self.live.pop(key, 0)

    def peak_since_last(self) -> int:
        peak, self.peak_bytes = self.peak_bytes, self.live_bytes
        return peak


def build_model() -> torch.nn.Module:
    """Two layers whose partitions over two ranks are 1 MiB in 16 bits, the least that DeepSpeed swaps to NVMe."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Linear(WIDTH, WIDTH))


def run(config: dict[str, Any], rank: int, steps: int) -> dict[str, Any]:
    """Train on one batch that each rank keeps; the losses, and where DeepSpeed's tensors are at which moment."""
    with CountStorages() as count:
        return train(config, rank, steps, count)


def train(config: dict[str, Any], rank: int, steps: int, count: CountStorages) -> dict[str, Any]:
    model = build_model()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)
    result: dict[str, Any] = {
        "stage": engine.zero_optimization_stage(),
        "optimizer": type(engine.basic_optimizer).__name__,
        "wrapper": type(engine.optimizer).__name__,
        "gradient_clipping": engine.gradient_clipping(),
        "state_elements_at_init": state_elements(engine),
        "losses": [],
    }
    generator = torch.Generator().manual_seed(rank)
    batch = torch.randn(4, WIDTH, generator=generator).to(engine.module[0].weight.dtype)
    peaks: dict[str, list[int]] = {"backward": [], "step": []}
    for _ in range(steps):
        loss = (engine(batch).float() - batch.float()).square().mean()
        count.peak_since_last()
        engine.backward(loss)
        peaks["backward"].append(count.peak_since_last())
        engine.step()
        peaks["step"].append(count.peak_since_last())
        shared = loss.detach().clone()
        comm.all_reduce(shared)
        result["losses"].append(shared.item() / comm.get_world_size())
    result["losses"] = result["losses"][:STEPS]
    if steps > STEPS:
        result |= {f"{phase}_peak_bytes": min(seen[STEPS - 1 :]) for phase, seen in peaks.items()}
    result["state_elements"] = state_elements(engine)
    result["bucket_elements_at_end"] = bucket_elements(engine)
    result["live_bytes_at_end"] = count.live_bytes
    result["swapped_bytes"] = swapped_bytes(config)
    engine.destroy()
    return result


def state_elements(engine: Any) -> int:
    """Elements of all tensors in the optimizer's states, without the step counters; swapped ones count as 0."""
    states = [tensor for state in engine.basic_optimizer.state.values() for tensor in state.values()]
    return sum(tensor.numel() for tensor in states if isinstance(tensor, torch.Tensor) and tensor.dim() > 0)


def bucket_elements(engine: Any) -> int:
    """Elements of the reduce buckets that exist now."""
    total = 0
    for bucket in getattr(engine.optimizer, "ipg_buckets", {}).values():
        buffers = bucket.buffer if isinstance(bucket.buffer, list) else [bucket.buffer]
        total += sum(buffer.numel() for buffer in buffers if buffer is not None)
    return total


def swapped_bytes(config: dict[str, Any]) -> int:
    """Bytes of the swap files of all ranks."""
    zero = config["zero_optimization"]
    folders = {zero.get(name, {}).get("nvme_path") for name in ("offload_optimizer", "offload_param")} - {None}
    return sum(file.stat().st_size for folder in folders for file in Path(folder).rglob("*.swp"))


def unlink_shared_memory(rank: int) -> None:
    """DeepSpeed leaves the segment of its CPU all-reduce in /dev/shm for good, 69 MB for each rank."""
    name = "_".join([str(os.getuid()), os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], str(rank)])
    Path("/dev/shm", f"deepspeed_allreduce_buffer_{name}").unlink(missing_ok=True)


def main() -> None:
    configs_path, results_path = [argument for argument in sys.argv[1:] if not argument.startswith("--local_rank")]
    deepspeed.init_distributed()
    rank = comm.get_rank()
    results = {}
    asked = json.loads(Path(configs_path).read_text(encoding="utf-8"))
    for name, config in asked["configs"].items():
        try:
            results[name] = run(config, rank, STEPS + STEPS_FOR_MEMORY * (name in asked["peaks"]))
        except Exception:  # noqa: BLE001 - the test reports which configuration failed, and how
            results[name] = {"error": traceback.format_exc()}
        gc.collect()
        comm.barrier()
    if rank == 0:
        Path(results_path).write_text(json.dumps(results), encoding="utf-8")
    comm.barrier()
    unlink_shared_memory(rank)
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may abort a normal exit after right results


if __name__ == "__main__":
    main()
