"""Managed memory: the driver moves its pages, so it takes no room from what cannot be moved."""

PROGRAM = """
import ctypes, json, torch
from zerobench.emulator.inside.account import managed_bytes, unmanaged_bytes
GIB = 1 << 30
runtime = ctypes.CDLL("libcudart.so.13")
first = torch.empty(GIB, dtype=torch.uint8, device="cuda")
before = unmanaged_bytes()
managed = ctypes.c_void_p()
said = {"allocated": runtime.cudaMallocManaged(ctypes.byref(managed), ctypes.c_size_t(60 * GIB), 1)}
said["used"] = torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0] - before
said["more"] = runtime.cudaMallocManaged(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(60 * GIB), 1)
said["free"] = torch.cuda.mem_get_info()[0]
plain = torch.empty(70 * GIB, dtype=torch.uint8, device="cuda")
said["managed"], said["unmanaged"] = managed_bytes(), unmanaged_bytes() - before
class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]
def prefetched(address):
    said = runtime.cudaMemPrefetchAsync(ctypes.c_void_p(address), ctypes.c_size_t(GIB), Location(1, 0), 0, None)
    runtime.cudaGetLastError()  # else torch would be told of it
    return said
said["prefetched"], said["not managed"] = prefetched(managed.value), prefetched(plain.data_ptr())
try:
    torch.empty(20 * GIB, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    said["refused"] = True
said["freed"] = runtime.cudaFree(managed)
said["left"] = managed_bytes()
print(json.dumps(said))
"""


def test_managed_memory_is_on_the_gpu_as_far_as_it_has_room_and_never_in_the_way(emulated):
    gib = 1 << 30
    said = emulated(PROGRAM, gpu="A100 SXM 80GB")
    assert (said["allocated"], said["used"]) == (0, 60 * gib)
    assert (said["more"], said["free"]) == (0, 0)  # 121 GiB on 80: what has no room is on the host
    assert (said["managed"], said["unmanaged"]) == (120 * gib, 70 * gib)
    assert said["refused"]
    assert (said["prefetched"], said["not managed"]) == (0, 1)
    assert (said["freed"], said["left"]) == (0, 60 * gib)


UNCOUNTED = """
import json, sys, torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from zerobench.emulator.inside.account import uncounted_workspaces

x = torch.randn(2, 8, 128, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
    torch.nn.functional.scaled_dot_product_attention(x, x, x).sum().backward()
said = [uncounted_workspaces()]
torch.nn.functional.conv2d(x, torch.empty(4, 8, 3, 3, device="cuda", dtype=torch.bfloat16)).sum().backward()
said.append(uncounted_workspaces())
torch.nn.GRU(8, 8).cuda()(torch.empty(1, 1, 8, device="cuda"))
print(json.dumps([*said, uncounted_workspaces()]))
"""


def test_convolutions_and_recurrent_layers_are_told_from_attention_since_cudnn_alone_knows_their_workspace(emulated):
    assert emulated(UNCOUNTED) == [[], ["convolutions"], ["convolutions", "recurrent layers"]]
