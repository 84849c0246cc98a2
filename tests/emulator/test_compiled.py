"""torch.compile on the emulated GPU: Inductor generates, Triton's ptxas compiles for that GPU, nothing is computed."""

from pathlib import Path

from tests.tools.emulated import Emulated

PROGRAM = """
import json, time, torch

@torch.compile
def f(x, w):
    return torch.nn.functional.gelu(x @ w) * x + 1

x, w = (torch.empty(256, 256, device="cuda", requires_grad=True) for _ in range(2))
f(x, w).sum().backward()
time.sleep(0.05)
print(json.dumps([list(x.grad.shape), torch.cuda.max_memory_allocated()]))
"""


def test_a_compiled_function_runs_forward_and_backward_with_kernels_for_that_gpu(emulated: Emulated, tmp_path: Path):
    shape, peak = emulated(
        PROGRAM,
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path),
        TRITON_CACHE_DIR=str(tmp_path / "triton"),
        TORCHINDUCTOR_COMPILE_THREADS="1",
    )
    assert shape == [256, 256]
    assert peak > 4 * 256 * 256 * 4
    kernels = sorted(tmp_path.glob("triton/**/*.cubin"))
    assert len(kernels) >= 2
    assert all(b"sm_90" in path.with_suffix(".ptx").read_bytes() for path in kernels)


ENGINE = """
import json, deepspeed, torch
import torch.distributed as dist
from zerobench.config.deepspeed.build import build_ds_config
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import TrialSpec
trial = TrialSpec.model_validate(
    {"model": resolve_model("gpt2-10m"), "strategy": "zero1", "optimizer": "adamw", "compile": "model"}
)
torch.cuda.set_device(0)
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.Linear(8, 8)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=build_ds_config(trial))
engine.compile(backend="eager")
for _ in range(4):
    engine.backward(engine(torch.ones(1, 8, device="cuda", dtype=torch.bfloat16)).float().sum())
    engine.step()
dist.destroy_process_group()
print(json.dumps([engine.is_compiled, engine.global_steps]))
"""


def test_a_compiled_engine_goes_on_after_the_second_step_from_which_on_deepspeed_times_it(emulated: Emulated) -> None:
    assert emulated(ENGINE, LOCAL_RANK="0") == [True, 4]
