"""The papers' and DeepSpeed's closed forms: what needs no engine at all, for the eye and as a check.

Without torch. `deepspeed` is what DeepSpeed really allocates, read in its
source; `activations` what autograd keeps; `record` puts them into the record that a trial of evidence `formula` leaves.
"""

from __future__ import annotations

from zerobench.estimate.memory.record import formula_record

__all__ = ["formula_record"]
