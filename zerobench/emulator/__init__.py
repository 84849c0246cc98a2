"""The emulated GPU: torch's own CUDA build over stand-ins for NVIDIA's libraries, on a machine without a GPU.

Device memory is address space, kernels and collectives return at once; the caching allocator, NCCL's process group,
DeepSpeed and the user's own script run as they are. What is computed on the device is not computed. Copies up to 64 KiB
are real (ZEROBENCH_EMULATED_COPY_BYTES sets another limit), and collectives of such messages answer as if all ranks
were alike (c/nccl.c); larger ones move nothing. So what is read back from the device, `.item()` of a loss or a reduced
flag, is what a copy or a collective has put there, or zero where an elementwise kernel, a reduction or `nonzero` would
have written since (c/outputs.c). After other kernels it may still be what was copied there before.
Which values torch itself computes beside that, and what becomes of offloaded states on the host: inside/.
"""
