"""What runs on the emulated GPU beside plain allocation: attention as torch chooses it, cuBLAS's workspaces, streams,
events, fused optimizers, convolutions; and CUDA graphs, which are refused.
"""

from typing import Any

import pytest

from tests.tools.at_least_one import at_least_one
from tests.tools.emulated import Emulated
from zerobench.config.hardware.overheads import workspace_of

PROGRAM = """
import json, time, torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
said = {"cudnn": torch.backends.cudnn.version(), "nccl": torch.cuda.nccl.version()}

def grown(action):
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    kept = action()
    return torch.cuda.memory_allocated() - before

x = torch.empty(512, 512, device="cuda")
said["workspace"] = grown(lambda: x @ x)
said["product"] = grown(lambda: x @ x)

q, k, v = (torch.empty(1, 8, 1024, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
said["choice"] = SDPBackend(torch._fused_sdp_choice(q, k, v, is_causal=True)).name
said["attention"] = {}
for backend in (None, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION):
    with sdpa_kernel(backend) if backend else torch.enable_grad():
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    out.sum().backward()
    said["attention"][backend.name if backend else "default"] = [out.grad_fn.name(), list(q.grad.shape)]

def workspace(key_heads):
    few = [torch.empty(1, key_heads, 1024, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in "kv"]
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        out = F.scaled_dot_product_attention(q, *few, is_causal=True, enable_gqa=True)
    gradient = torch.empty_like(out)
    torch.cuda.memory._record_memory_history(context=None)
    torch.autograd.grad(out, [q, *few], gradient)
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(None)
    return max(event["size"] for event in events if event["action"] == "alloc")
said["workspaces"] = [workspace(8), workspace(2)]

torch.nn.Conv2d(3, 8, 3).cuda()(torch.empty(2, 3, 32, 32, device="cuda")).sum().backward()

stream = torch.cuda.Stream(priority=-1)
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record()
with torch.cuda.stream(stream):
    y = x * 2
    y.record_stream(torch.cuda.current_stream())
end.record(stream)
torch.cuda.current_stream().wait_stream(stream)
end.synchronize()
said["stream"] = [stream.priority, stream.query(), end.query(), start.elapsed_time(end)]

model = torch.nn.Linear(256, 256, device="cuda")
said["optimizers"] = {}
for kind in ("fused", "foreach"):
    optimizer = torch.optim.AdamW(model.parameters(), **{kind: True})
    model(torch.empty(4, 256, device="cuda")).sum().backward()
    said["optimizers"][kind] = grown(optimizer.step)

try:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x * 2
except RuntimeError as error:
    said["graph"] = str(error).splitlines()[0]
said["after"] = (x + 1).shape[0]

norm = torch.nn.BatchNorm2d(8).cuda()
said["normalized"] = grown(lambda: norm(torch.empty(4, 8, 16, 16, device="cuda", requires_grad=True)))
said["refused"] = {}
F.scaled_dot_product_attention(*[torch.empty(65536, 1, 8, 8, device="cuda")] * 3)
refused = {"eigh": lambda: torch.linalg.eigh(x), "fft": lambda: torch.fft.fft(x)}
many = torch.empty(65536, 1, 8, 8, device="cuda", dtype=torch.bfloat16)
refused["sequences"] = lambda: F.scaled_dot_product_attention(many, many, many)
refused["share"] = lambda: x.untyped_storage()._share_cuda_()
for name, action in refused.items():
    try:
        action()
    except RuntimeError as error:
        said["refused"][name] = str(error).splitlines()[0]
time.sleep(0.05)
print(json.dumps(said))
"""


@pytest.fixture(scope="module", params=["H200", "A100 SXM 80GB"])
def said(request, emulated: Emulated) -> tuple[str, dict[str, Any]]:
    return request.param, emulated(PROGRAM, gpu=request.param)


def test_attention_is_chosen_as_on_that_gpu_and_each_kind_of_it_runs(said):
    gpu, seen = said
    chosen = {"H200": "CUDNN", "A100 SXM 80GB": "FLASH"}[gpu]
    assert seen["choice"] == f"{chosen}_ATTENTION"
    names = {"FLASH": "Flash", "EFFICIENT": "Efficient", "CUDNN": "Cudnn"}
    assert seen["attention"]["default"] == seen["attention"][f"{chosen}_ATTENTION"]
    for kind, name in names.items():
        function, shape = seen["attention"][f"{kind}_ATTENTION"]
        assert function == f"ScaledDotProduct{name}AttentionBackward0"
        assert shape == [1, 8, 1024, 128]


def test_grouped_heads_gradients_of_every_query_head_are_cudnns_workspace_as_on_an_h100(said):
    gpu, seen = said
    queries = 8 * 1024 * 128
    alone = 4 * queries + 4 * 8 * 1024  # in fp32 their gradient, and a number a row
    assert gpu != "H200" or seen["workspaces"] == [alone, alone + 2 * 2 * queries + 256]


def test_torch_gives_cublas_the_workspace_of_that_gpu_once(said):
    gpu, seen = said
    product = 512 * 512 * 4
    assert seen["product"] == product
    assert seen["workspace"] - product == workspace_of(gpu).workspace_bytes


def test_the_libraries_say_the_versions_that_torch_was_compiled_with(said):
    assert said[1]["cudnn"] >= 91900
    assert said[1]["nccl"][0] == 2


def test_streams_and_events_are_ready_at_once_and_no_time_passes_between_events(said):
    assert said[1]["stream"] == [-1, True, True, 0.0]


def test_fused_and_foreach_optimizers_keep_their_states(said):
    moments = 2 * 4 * (256 * 256 + 256)
    fused, foreach = said[1]["optimizers"]["fused"], said[1]["optimizers"]["foreach"]
    assert moments <= fused <= moments + 4096
    assert moments <= foreach <= moments + 4096


def test_capturing_a_cuda_graph_is_refused_with_a_clear_sentence_and_the_device_goes_on(said):
    assert said[1]["graph"] == "CUDA error: CUDA graphs cannot be captured on the emulated GPU"
    assert said[1]["after"] == 512


def test_batch_norm_keeps_its_input_and_two_statistics_and_no_size_is_made_up(said):
    output = 4 * 8 * 16 * 16 * 4
    assert 2 * output <= said[1]["normalized"] <= 2 * output + 4096


def test_a_grid_that_no_gpu_takes_is_refused_as_flash_attentions_of_65_536_sequences(said):
    assert said[1]["refused"]["sequences"] == "CUDA error: invalid configuration argument"


def test_what_needs_a_size_that_only_the_library_knows_is_refused(said):
    refused = said[1]["refused"]
    assert refused["eigh"].startswith("cusolver error")
    assert "_bufferSize" in refused["eigh"]
    assert refused["fft"] == "cuFFT error: CUFFT_NOT_SUPPORTED"
    assert refused["share"] == "CUDA error: operation not supported on the emulated GPU"


DISPATCHED = """
import json, torch
x = torch.ones(64, 1000, device="cuda")
found = [x.cumsum(-1), *x.sort(), *x.topk(5), torch.multinomial(x[0], 2), torch.unique(x)]
print(json.dumps([list(one.shape) for one in found]))
"""


@pytest.mark.parametrize("gpu", ["RTX 4090", "B300 SXM"])
def test_what_is_dispatched_by_compiled_code_runs_where_code_for_that_very_gpu_was_not_compiled(
    emulated: Emulated, gpu: str
) -> None:
    """Torch is compiled for 8.6 and 10.0, not for 8.9 and 10.3: CUB knows the code's architecture and no other."""
    shapes = emulated(DISPATCHED, gpu=gpu)
    assert shapes[:3] == [[64, 1000]] * 3
    assert shapes[3:6] == [[64, 5], [64, 5], [2]]


RECURRENT = """
import json, torch
said = {}
for name, make, sizes in (
    ("LSTM", torch.nn.LSTM, {"num_layers": 2}),
    ("LSTM, both ways, projected", torch.nn.LSTM, {"num_layers": 2, "bidirectional": True, "proj_size": 16}),
    ("GRU without biases", torch.nn.GRU, {"num_layers": 3, "bias": False}),
    ("plain", torch.nn.RNN, {"bidirectional": True}),
):
    model = make(32, 64, **sizes).cuda()
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in model.parameters()}
    x = torch.empty(5, 8, 32, device="cuda")
    first = [torch.zeros_like(state) for state in (lambda h: h if isinstance(h, tuple) else [h])(model(x)[1])]
    first = tuple(first) if len(first) == 2 else first[0]
    before = torch.cuda.memory_allocated()
    with torch.no_grad():
        result = model(x, first)
    without = torch.cuda.memory_allocated() - before
    del result
    result = model(x, first)
    for_backward = torch.cuda.memory_allocated() - before - without
    result[0].sum().backward()
    said[name] = {
        "buffers beyond weights": [size - 4 * sum(p.numel() for p in model.parameters()) for size in storages.values()],
        "output": list(result[0].shape),
        "gradients": all(p.grad is not None and p.grad.shape == p.shape for p in model.parameters()),
        "kept for backward": for_backward,
    }
    del model, result
print(json.dumps(said))
"""


def test_recurrent_layers_train_with_their_weights_in_one_buffer_and_keep_what_backward_reads(
    emulated: Emulated,
) -> None:
    said = emulated(RECURRENT)
    steps, hidden = 5 * 8, 64
    kept = {  # elements a step: gates and cells of each layer and direction, and what lies between two layers
        "LSTM": 2 * 5 * hidden + hidden,
        "LSTM, both ways, projected": 2 * 2 * 5 * hidden + 2 * 16,
        "GRU without biases": 3 * 4 * hidden + 2 * hidden,
        "plain": 0,
    }
    unused_biases = {"GRU without biases": 4 * 3 * 2 * 3 * hidden}  # torch asks cuDNN for room for them all the same
    widths = {"LSTM": 64, "LSTM, both ways, projected": 32, "GRU without biases": 64, "plain": 128}
    for name, elements in at_least_one(kept.items()):
        assert said[name] == {
            "buffers beyond weights": [unused_biases.get(name, 0)],
            "output": [5, 8, widths[name]],
            "gradients": True,
            "kept for backward": -(-4 * steps * elements // 512) * 512,
        }, name
