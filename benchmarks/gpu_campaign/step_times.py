"""Steps of a plain loop on one GPU, each configuration in a process of its own: times, memory, each kernel of a step.

    python benchmarks/gpu_campaign/step_times.py [--only WORD,...] [--out FOLDER]

Nothing of zerobench but its presets: Hugging Face's model, DeepSpeed's engine, torch's AdamW or PEFT's adapters, the
clock and torch's profiler. `steps.csv` has the medians, and the chip's clock and power meanwhile; `KEY.kernels.csv` the
kernels of one profiled step (name, how often, seconds), `KEY.trace.json.gz` its timeline. A configuration that fails is
said, and the next one goes on. In one process engines that are done with still slow the host down: DeepSpeed's hooks
keep them.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import multiprocessing
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined] # torch exports it in no stub
from torch.profiler import ProfilerActivity, profile
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.initialization import no_init_weights

from benchmarks.gpu_campaign.chip import Chip
from benchmarks.gpu_campaign.measured import CELLS, Cell
from zerobench.config.models.presets import resolve_model
from zerobench.report.words.cells import as_cell, escaped_row

ROOT = Path(__file__).resolve().parent.parent.parent
WARMUP, TIMED, PHASED = 4, 8, 4

_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(["torch", "transformers.models.llama.modeling_llama"])


def ds_config(cell: Cell) -> dict[str, Any]:
    """DeepSpeed's defaults, with AdamW and bf16."""
    stage, _, place = cell.how.removeprefix("zero").partition("-")
    zero: dict[str, Any] = {"stage": int(stage)}
    if place:
        zero["offload_optimizer"] = {"device": place, "pin_memory": True}
    return {
        "train_micro_batch_size_per_gpu": cell.micro_batch_size,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
        "zero_optimization": zero,
        "steps_per_print": 10**9,
    }


def build(cell: Cell) -> tuple[Any, Any]:
    """Model and engine; the engine is torch's optimizer, or None, where DeepSpeed is not asked for."""
    config = AutoConfig.for_model(**resolve_model(cell.model).hf_config)
    config.use_cache = False
    with torch.device("cuda"), no_init_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.tie_weights()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.02) if parameter.dim() > 1 else parameter.fill_(1.0)
    if cell.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    if cell.how == "passes":
        return model, None
    if cell.how.startswith("lora"):
        model = _with_adapters(model, widened=cell.how == "lora")
    if cell.is_plain:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return model, torch.optim.AdamW(trained, lr=1e-5, fused=True)
    import deepspeed  # noqa: PLC0415

    return model, deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=ds_config(cell))[
        0
    ]


def _with_adapters(model: Any, *, widened: bool) -> Any:
    """PEFT's, of rank 16 on the attention's products; fp32 unless it is told not to widen them."""
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415

    asked = LoraConfig(r=16, lora_alpha=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
    model.enable_input_require_grads()
    return get_peft_model(model, asked, autocast_adapter_dtype=widened)


def phases(cell: Cell, model: Any, engine: Any) -> tuple[Callable[[], Any], Callable[[Any], None], Callable[[], None]]:
    """Forward, backward and the update."""
    shape = (cell.micro_batch_size, cell.sequence_length)
    ids = torch.randint(0, model.config.vocab_size, shape, device="cuda")
    if cell.how == "passes":
        return (
            lambda: model(input_ids=ids, labels=ids).loss,
            lambda loss: loss.backward(),
            lambda: model.zero_grad(set_to_none=False),
        )
    if cell.is_plain:

        def update() -> None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            engine.step()
            engine.zero_grad()

        return lambda: model(input_ids=ids, labels=ids).loss, lambda loss: loss.backward(), update
    return lambda: engine(input_ids=ids, labels=ids).loss, engine.backward, engine.step


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    """Its row of steps.csv."""
    free_before = torch.cuda.mem_get_info()[0]
    begun = time.perf_counter()
    model, engine = build(cell)
    torch.cuda.synchronize()
    row: dict[str, Any] = {"key": cell.key, "build_s": round(time.perf_counter() - begun, 2)}
    forward, backward, update = phases(cell, model, engine)

    def step() -> Any:
        loss = forward()
        backward(loss)
        update()
        return loss.detach()

    for _ in range(WARMUP):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(TIMED + 1)]
    begun = time.perf_counter()
    with Chip() as chip:
        events[0].record()
        for event in events[1:]:
            loss = step()
            event.record()
        torch.cuda.synchronize()
    row["step_s"] = (time.perf_counter() - begun) / TIMED
    row |= chip.means
    steps = [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(events)]
    row |= {"step_s_median": statistics.median(steps), "step_s_min": min(steps), "step_s_max": max(steps)}
    row |= {"loss": float(loss), "peak_allocated": torch.cuda.max_memory_allocated()}
    row |= {"allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
    row["used_by_driver"] = free_before - torch.cuda.mem_get_info()[0]
    row |= _phase_seconds(forward, backward, update)
    if cell.traced:
        _trace(step, folder / cell.key, row)
    return row


def _phase_seconds(
    forward: Callable[[], Any], backward: Callable[[Any], None], update: Callable[[], None]
) -> dict[str, float]:
    """Each phase alone, the device waited for after it: on the device, and until the host had issued it."""
    times = defaultdict(list)

    def timed(name: str, work: Callable[..., Any], *arguments: Any) -> Any:
        begun = time.perf_counter()
        result = work(*arguments)
        times[f"{name}_issued_s"].append(time.perf_counter() - begun)
        torch.cuda.synchronize()
        times[f"{name}_s"].append(time.perf_counter() - begun)
        return result

    for _ in range(PHASED):
        timed("backward", backward, timed("forward", forward))
        timed("update", update)
    return {name: statistics.median(values) for name, values in times.items()}


def _trace(step: Callable[[], Any], place: Path, row: dict[str, Any]) -> None:
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as profiler:
        step()
        torch.cuda.synchronize()
    profiler.export_chrome_trace(f"{place}.trace.json.gz")
    kernels: dict[str, list[float]] = defaultdict(list)
    for event in profiler.events():
        if event.device_type == DeviceType.CUDA:
            kernels[event.name].append(event.device_time / 1e6)
    with Path(f"{place}.kernels.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["seconds", "count", "median_s", "name"])
        for name, seconds in sorted(kernels.items(), key=lambda item: -sum(item[1])):
            median_s = f"{statistics.median(seconds):.4g}"
            writer.writerow([f"{sum(seconds):.6g}", len(seconds), median_s, as_cell(name[:300])])
    row["kernels_s"] = sum(map(sum, kernels.values()))


def in_own_process(cell: Cell, folder: Path) -> dict[str, Any]:
    """Its row, or how it failed; torch is imported once, before the processes part, and CUDA begun in each."""
    try:
        with ProcessPoolExecutor(1, mp_context=_FORKED) as pool:
            return pool.submit(measure, cell, folder).result()
    except Exception as error:  # noqa: BLE001 - one that does not fit is not the others' end
        return {"key": cell.key, "error": repr(error)[:300]}


def main() -> None:
    """Measure each configuration, one row each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cells whose key has one of these words, with commas between")
    parser.add_argument("--seconds", type=float, default=1e9, help="no cell is begun after so many")
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "step_times")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    ends_at = time.monotonic() + asked.seconds
    for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1"}.items():
        os.environ.setdefault(name, str(value))
    os.environ.setdefault("MASTER_PORT", "29511")
    rows: list[dict[str, Any]] = []
    for cell in CELLS:
        if not any(word in cell.key for word in asked.only.split(",")) or time.monotonic() > ends_at:
            continue
        rows.append(in_own_process(cell, asked.out))
        print({k: round(v, 5) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
        columns = list(dict.fromkeys(name for row in rows for name in row))
        with (asked.out / "steps.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(map(escaped_row, rows))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # some builds of torch abort in an ordinary exit, after right results
