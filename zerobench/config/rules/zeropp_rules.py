"""Rules for ZeRO++ (hpZ, qwZ, qgZ) and MiCS, from the source of DeepSpeed 0.19.8."""

from zerobench.config.derived.batch import AUTOTP_SIZE, autotp_size
from zerobench.config.derived.strategy import ZEROPP, strategy_info
from zerobench.config.models.architecture import dimensions
from zerobench.config.rules.situation import Situation, rules_of
from zerobench.config.trial.trial import Evidence, Offload, Precision

_BLOCK = 8
"""Quantization needs a rank's part of a tensor to be a multiple of this many elements (partition_parameters.py,
CUDAQuantizer.quantize, an assertion)."""
_COMMUNICATION_TYPE = "communication_data_type"


def _options(s: Situation) -> str:
    """ZeRO++ axes of the trial, for sentences."""
    values = {axis: getattr(s.trial, axis) for axis in ZEROPP}
    return " and ".join(f"{axis} {str(value).lower()}" for axis, value in values.items() if value)


def _zeropp_needs_stage_3(s: Situation) -> str | None:
    if _options(s) and ZEROPP[0] not in strategy_info(s.trial.strategy).axes:
        return f"{_options(s)} at {s.trial.strategy}: ZeRO++ changes stage 3 only; use zero3"
    return None


def _mics_needs_fsdp(s: Situation) -> str | None:
    if s.trial.mics_shard_size is None or "mics_shard_size" in strategy_info(s.trial.strategy).axes:
        return None
    what = f"mics_shard_size {s.trial.mics_shard_size} at {s.trial.strategy}"
    if s.trial.zero_stage == 3:
        return (
            f"{what}: DeepSpeed has removed MiCS (0.19.8, runtime/config.py, _REMOVED_ZERO_CONFIG_KEYS); "
            "use fsdp, which shards in the same way"
        )
    return f"{what}: this strategy does not shard all model states; use fsdp"


def _groups_not_even(s: Situation) -> str | None:
    for axis in ("hpz_partition_size", "mics_shard_size"):
        size, ranks = getattr(s.trial, axis), s.trial.world_size
        if size is not None and (size > ranks or ranks % size):
            return f"{axis} {size}: {ranks} ranks cannot be divided into groups of {size}"
    return None


def _zeropp_groups_ignore_autotp(s: Situation) -> str | None:
    # deepspeed/utils/groups.py, _create_zero_param_parallel_group and _get_local_all_to_all_group. With hpZ, losses
    # differed from the single process's by 0.14 within six steps.
    grouped = s.trial.hpz_partition_size is not None or s.trial.quantized_gradients
    if not grouped or autotp_size(s.trial) == 1:
        return None
    return (
        f"{_options(s)} with {AUTOTP_SIZE} {autotp_size(s.trial)}: ZeRO++ groups neighbouring ranks, which "
        "hold different parts of the model under AutoTP; use one of the two"
    )


def _hpz_is_not_swapped(s: Situation) -> str | None:
    # partition_parameters.py, _partition_param_sec allocates the copy on `remote_device`, which is nvme
    if s.trial.hpz_partition_size is None or s.trial.offload_param is not Offload.NVME:
        return None
    return (
        f"hpz_partition_size {s.trial.hpz_partition_size} with offload_param nvme: DeepSpeed fails to "
        "allocate the second copy on NVMe; use cpu or none"
    )


def _quantizer_needs_gpu(s: Situation) -> str | None:
    if not (s.trial.quantized_weights or s.trial.quantized_gradients):
        return None
    if not s.uses_gpus:
        return f"{_options(s)} on the CPU: DeepSpeed's quantizer (csrc/quantization) needs GPUs"
    if s.trial.evidence.needs_device and "fused_adam" in s.machine.missing_kernels:
        return f"{_options(s)}: DeepSpeed's quantizer is compiled at first use; the CUDA toolkit (nvcc) is missing"
    return None


def _quantized_parts_not_even(s: Situation) -> str | None:
    # Norms are gathered one by one, and theirs are the smallest parts
    hidden, ranks = dimensions(s.trial.model).hidden_size, s.trial.world_size
    if not s.trial.quantized_weights or hidden is None or -(-hidden // ranks) % _BLOCK == 0:
        return None
    return (
        f"quantized_weights true on {ranks} ranks: DeepSpeed quantizes multiples of {_BLOCK} elements, and a rank's "
        f"part of a norm of {hidden} elements is {-(-hidden // ranks)}"
    )


def _quantized_gradients_need_nodes(s: Situation) -> str | None:
    # stage3.py, __avg_scatter_grads: `num_nodes > 1`
    if s.trial.quantized_gradients and s.trial.num_nodes == 1:
        return (
            "quantized_gradients true on one node: DeepSpeed silently does not quantize on one node; use "
            "two or more nodes"
        )
    return None


def _quantized_gradients_need_fp16(s: Situation) -> str | None:
    # coalesced_collectives.py, all_to_all_quant_reduce passes gradients on as they are; pt_binding.cpp,
    # ds_swizzle_quant casts their pointer to `__half*`. CUDAQuantizer.quantize, for weights, converts them first.
    sent_as = str(s.trial.ds_config.get(_COMMUNICATION_TYPE) or s.trial.precision.value)
    if not s.trial.quantized_gradients or sent_as in {Precision.FP16.value, "float16", "half"}:
        return None
    return (
        f"quantized_gradients true with gradients sent as {sent_as}: DeepSpeed's kernel reads them as "
        f"fp16 unconverted; use precision fp16, or ds_config {_COMMUNICATION_TYPE}: fp16"
    )


def _zeropp_beyond_formula(s: Situation) -> str | None:
    if s.trial.evidence is not Evidence.FORMULA:
        return None
    quantized = s.trial.quantized_weights or s.trial.quantized_gradients
    offloaded = s.trial.hpz_partition_size is not None and s.trial.offload_param is not Offload.NONE
    if not quantized and not offloaded:
        return None
    what = "quantized buffers" if quantized else "an offloaded second copy"
    return f"{_options(s)} formula: no closed form for {what}; use simulated"


ZEROPP_RULES = rules_of(globals())
"""In the order of application."""
