"""How large a checkpoint is: bytes of all its files together, by what each strategy writes for a parameter.

Adam's two moments take 8 bytes of a parameter, fp32 master weights 4, the parameters themselves 4 or 2.

- torch's own loops write parameters, masters where there are any, and moments, each once. FSDP2's fp32 parts are
  parameters and masters in one.
- DeepSpeed below stage 3 writes the module by rank 0 (runtime/engine.py, _save_checkpoint), and at stages 1 and 2
  beside it an fp32 copy of the weights and the moments, a partition a rank (stage_1_and_2.py, state_dict). In fp32
  that copy is one more: 16 bytes.
- At stage 3 there is no module, only the fp32 partitions and the moments (stage3.py, _rigid_state_dict), each cut to
  equal parts of every parameter.

Headers, names and step counters come on top; they are nothing beside the states of a model worth saving.
"""

from __future__ import annotations

from zerobench.spec.resume import needs_universal
from zerobench.spec.trial import Optimizer, Precision, TrialSpec

_FP32 = 4


def checkpoint_bytes(trial: TrialSpec, num_params: int) -> int:
    """Bytes of one checkpoint of `trial`, whose model has `num_params` parameters, all of them trained."""
    return num_params * (_weight_bytes(trial) + (0 if trial.optimizer is Optimizer.SGD else 8))


def _weight_bytes(trial: TrialSpec) -> int:
    """Bytes that the copies of one weight take."""
    is_fp32 = trial.precision is Precision.FP32
    if trial.strategy == "fsdp" or trial.zero_stage == 3:
        return _FP32
    module = _FP32 if is_fp32 else 2
    has_masters = bool(trial.zero_stage) or not is_fp32
    return module + (_FP32 if has_masters else 0)


def room_bytes(trial: TrialSpec, num_params: int) -> int:
    """Bytes that must be free for the checkpoints of `trial`: two lie there while the second is written, and beside
    the last one its universal form, which is made by way of a copy of the fp32 weights and the moments.
    """
    once = checkpoint_bytes(trial, num_params)
    universal = once + 2 * 12 * num_params if needs_universal(trial) else 0
    return max(2 * once, universal + once)
