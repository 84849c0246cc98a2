"""What runs inside a process on the emulated GPU, beside the stand-ins that its torch loads: which values are real.

**Memory.** Device memory and large blocks of the host (1 MiB and more of torch's CPU allocator, and all page-locked
memory) are address space: counted, and taken from the machine only where something writes.

**Real on the host**: every operation on small tensors; integers and booleans of any size (token ids, permutations,
lengths, masks). An operation with a tensor of 1 MiB or more of floating point, complex or 8 bits among its arguments is
not computed: results have their shape and are zero, what would be written in place stays as it was. So are the states
of CPUAdam, CPULion, CPUAdagrad, copies between host and device, casts, norms and fills of offloaded states. What goes
past torch is real: numpy, pickle (`torch.save` writes its zeros to the disk), memory that a file is mapped to.

**Real on the device**: integers and booleans up to 64 MiB and numbers up to 4 KiB, computed on the host by the
operation of the same name: counts, masks, flags, scales, learning rates, norms of norms, AMP's scaler. Everything
larger is zero from its birth: activations, gradients, weights, the loss, the norm of a gradient. Random numbers are
zero, and a zero divided by a zero is zero. So overflow is never found, no step is skipped, no loss scale changes.
Copies up to 64 KiB between host and device are made, larger ones of integers too, others move nothing.

**Routing is balanced.** `topk` and `argmax` along the last dimension of rows that nobody computed, as a router's scores
are, give row r the entries from r * k on, counted around: each expert gets as many tokens as any other.

**Swaps.** What DeepSpeed swaps to NVMe is counted by file and byte, and no file or folder is made (kernels.py).

The rule for tensors is cpp/values.cpp, below torch's autograd and above its kernels, so it holds for every script and
library. Kernels that no torch operation launches (Triton's, another package's) write nothing.
"""
