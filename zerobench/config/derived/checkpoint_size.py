"""Size of a checkpoint: bytes of all its files together, by what each strategy writes for a parameter.

Adam's two moments take 8 bytes of a parameter, fp32 master weights 4, the parameters themselves 4 or 2.

- torch's own loops write parameters, masters where there are any, and moments, each once. FSDP2's fp32 parts are
  parameters and masters in one.
- DeepSpeed below stage 3 writes the module by rank 0 (runtime/engine.py, _save_checkpoint), and at stages 1 and 2
  beside it an fp32 copy of the weights and the moments, a partition a rank (stage_1_and_2.py, state_dict). In fp32
  that copy is one more: 16 bytes.
- At stage 3 there is no module, only the fp32 partitions and the moments (stage3.py, _rigid_state_dict), each cut to
  equal parts of every parameter.
- Below stage 3 what AutoTP cut lies in a file for each part, and what it left whole, embedding and norms, in each of
  them; stage 3 partitions that among all ranks.
- What is frozen is written nowhere (save_checkpoint's `exclude_frozen_parameters`, which zerobench asks for).
- DeepSpeed's pipeline writes what stage 0 does, a file for each stage. In bf16 its optimizer is BF16_Optimizer, which
  the engine takes for one that is partitioned and for one that is not: master weights and moments are written twice
  (runtime/engine.py, _save_checkpoint and _save_zero_checkpoint).

Headers, names and step counters come on top; they are nothing beside the states of a model worth saving.
"""

from __future__ import annotations

from zerobench.config.derived.batch import autotp_size
from zerobench.config.derived.resume import needs_universal
from zerobench.config.derived.strategy import strategy_info, uses_deepspeed
from zerobench.config.models.parameters import count_parameters
from zerobench.config.trial.optimizers import OPTIMIZERS
from zerobench.config.trial.trial import Precision, TrialSpec

_FP32 = 4


def checkpoint_bytes(trial: TrialSpec, num_params: int) -> int:
    """Bytes of one checkpoint of `trial`, which trains `num_params` parameters."""
    moments = OPTIMIZERS[trial.optimizer].state_bytes
    module, masters = _weight_bytes(trial)
    return round(_params_written(trial, num_params) * (module + _copies_of_states(trial) * (masters + moments)))


def _params_written(trial: TrialSpec, num_params: int) -> int:
    """Parameters in all files together, those that several have counted in each."""
    parts = 1 if trial.zero_stage == 3 else autotp_size(trial)
    counts = count_parameters(trial.model)
    whole = 0 if counts is None else counts.token_embeddings + counts.norms
    return num_params + (parts - 1) * whole


def _weight_bytes(trial: TrialSpec) -> tuple[int, int]:
    """Bytes that one weight takes in the model's precision, and beside that in fp32."""
    is_fp32 = trial.precision is Precision.FP32
    if trial.strategy == "fsdp" or trial.zero_stage == 3:
        return 0, _FP32
    has_masters = bool(trial.zero_stage) or not is_fp32
    return _FP32 if is_fp32 else 2, _FP32 if has_masters else 0


def _copies_of_states(trial: TrialSpec) -> int:
    """Copies of master weights and moments that are written."""
    is_pipeline = strategy_info(trial.strategy).divides_layers and uses_deepspeed(trial)
    return 2 if is_pipeline and trial.precision is Precision.BF16 else 1


def room_bytes(trial: TrialSpec, num_params: int) -> int:
    """Bytes that must be free for the checkpoints of `trial`: two lie there while the second is written, and beside
    the last one its universal form, which is made by way of a copy of the fp32 weights and the moments.
    """
    once = checkpoint_bytes(trial, num_params)
    universal = once + 2 * 12 * _params_written(trial, num_params) if needs_universal(trial) else 0
    return max(2 * once, universal + once)
