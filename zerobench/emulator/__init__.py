"""The emulated GPU: torch's own CUDA build over stand-ins for NVIDIA's libraries, on a machine without a GPU.

Device memory is reserved address space, kernels and collectives return immediately; the caching allocator, NCCL's
process group, DeepSpeed and the user's own script run unchanged. Results of device kernels are not computed: a value
read from the device (`.item()` of a loss or of a reduced flag) is zero, or the result of the last small copy or small
collective. Copies and collectives up to 64 KiB are real, collectives as if all ranks were identical (c/nccl.c); larger
ones move nothing. ZEROBENCH_EMULATED_COPY_BYTES sets another limit. inside/ documents the values that torch itself
computes, and offloaded states on the host.
"""
