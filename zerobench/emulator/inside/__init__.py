"""Code within a process on the emulated GPU, besides the stand-ins that its torch loads, and a list of real values.

**Memory.** Device memory and large blocks of the host (1 MiB and more of torch's CPU allocator, and all page-locked
memory) are address space: counted, and backed by the machine only where something is written.

**Real on the host**: every operation on small tensors; integers and booleans of any size (token ids, permutations,
lengths, masks). An operation with a tensor of 1 MiB or more of floating point, complex or 8 bits among its arguments is
not computed: results have their shape and are zero, and in-place results are unchanged. The same applies to the states
of CPUAdam, CPULion and CPUAdagrad, copies between host and device, and casts, norms and fills of offloaded states.
Everything outside torch is real: numpy, pickle (`torch.save` writes its zeros to the disk), memory-mapped files.

**Real on the device**: integers and booleans up to 64 MiB and numbers up to 4 KiB, computed on the host by the
operation of the same name: counts, masks, flags, scales, learning rates, norms of norms, AMP's scaler. Everything
larger is always zero: activations, gradients, weights, the loss, the norm of a gradient. Random numbers are zero, and
zero divided by zero is zero. So overflow is never found, no step is skipped, no loss scale changes. Copies up to 64 KiB
between host and device are real, as are larger ones of integers; others move nothing.

**Routing is balanced.** `topk` and `argmax` along the last dimension of uncomputed rows, such as a router's scores,
give row r the entries from r * k on, modulo the row's length: each expert gets as many tokens as any other.

**Swaps.** DeepSpeed's swaps to NVMe are counted by file and byte, without creating files or folders (kernels.py).

The rule for tensors is cpp/values.cpp, below torch's autograd and above its kernels, so it applies to every script and
library. Kernels that no torch operation launches (Triton's, another package's) write nothing.
"""
