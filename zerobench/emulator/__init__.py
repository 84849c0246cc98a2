"""The emulated GPU: torch's own CUDA build over stand-ins for NVIDIA's libraries, on a machine without a GPU.

Device memory is address space, kernels and collectives return at once; the caching allocator, NCCL's process group,
DeepSpeed and the user's own script run as they are. What is computed on the device is not computed: a value read back
from it (`.item()` of a loss or of a reduced flag) is zero, or what a small copy or a small collective last put there.
Copies and collectives up to 64 KiB are real, collectives as if all ranks were alike (c/nccl.c); larger ones move
nothing. ZEROBENCH_EMULATED_COPY_BYTES sets another limit. Which values torch itself computes beside that, and what
becomes of offloaded states on the host, is said in inside/.
"""
