"""torch.compile on the emulated GPU: Inductor generates, Triton's ptxas compiles for that GPU, nothing is computed."""

from __future__ import annotations

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
