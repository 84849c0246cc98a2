"""Machines that rules and sweeps are asked about."""

from zerobench.config.derived.machine import Accelerator, Machine

GIB = 2**30
CPU = Machine(accelerator=Accelerator.CPU, cpu_cores=2, host_memory_bytes=16 * GIB, supports_fp16=False)
GPUS = Machine(accelerator=Accelerator.CUDA, num_gpus=8, cpu_cores=64, host_memory_bytes=512 * GIB)
EIGHT_H200 = GPUS.model_copy(update={"gpu_names": ("NVIDIA H200",) * 8, "host_memory_bytes": 1024 * GIB})
