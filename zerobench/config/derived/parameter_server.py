"""Traffic of a parameter server in closed form: Li et al., OSDI 2014, algorithm 1.

In each iteration a worker pushes a gradient and pulls weights, each as large as the weights that it works with, and in
a model without sparse features these are all of them: 2 x weights a worker and step. The server's link carries the sum
over its workers, where an all-reduce on a ring would have each of N ranks send and receive 2 (N-1)/N x weights.
"""

from __future__ import annotations

from zerobench.config.derived.roles import Role


def bytes_per_step(weights_bytes: int, num_workers: int, role: Role) -> int:
    """Bytes that a rank sends and receives together in one step: 2 x weights, on the server for each worker."""
    return 2 * weights_bytes * (num_workers if role is Role.SERVER else 1)
