"""Rules for strategies that run in a separate environment."""

from zerobench.config.derived.roles import num_servers
from zerobench.config.derived.strategy import strategy_info
from zerobench.config.hardware import tpu
from zerobench.config.models.architecture import complete
from zerobench.config.rules.optimizer_rules import optimizer_refused
from zerobench.config.rules.situation import Situation, rules_of
from zerobench.config.trial.trial import Attention, Compression, Consistency, Precision, TfStrategy

_KERAS_MODELS = ("gpt2", "llama")
_DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout")

_HOROVOD_COMPRESSIONS = {Compression.NONE, Compression.FP16}


def _environment_needs_one_node(s: Situation) -> str | None:
    info = strategy_info(s.trial.strategy)
    if info.environment is None or s.trial.num_nodes == 1:
        return None
    return f"{info.name} on {s.trial.num_nodes} nodes: separate environments work on one node only"


def _environment_needs_cpu(s: Situation) -> str | None:
    info = strategy_info(s.trial.strategy)
    if info.environment is None or not s.uses_gpus:
        return None
    return (
        f"{info.name} on GPUs: zerobench setup {info.environment} makes a CPU environment; set "
        "DS_ACCELERATOR=cpu to run all strategies on the CPU"
    )


def _horovod_needs_fp32(s: Situation) -> str | None:
    if s.trial.strategy != "horovod" or s.trial.precision is Precision.FP32:
        return None
    return (
        f"horovod with precision {s.trial.precision}: Horovod would reduce fp32 gradients of master "
        "weights, and does not support bf16; use fp32"
    )


def _horovod_compresses_to_fp16(s: Situation) -> str | None:
    if s.trial.strategy != "horovod" or s.trial.compression in _HOROVOD_COMPRESSIONS:
        return None
    return f"compression {s.trial.compression} at horovod: Horovod supports none and fp16"


def _tensorflow_needs_a_tpu(s: Situation) -> str | None:
    trial = s.trial
    if trial.strategy != "tensorflow" or trial.tf_strategy is not TfStrategy.TPU or s.machine.has_tpu:
        return None
    others = ", ".join(name for name in TfStrategy if name is not TfStrategy.TPU)
    return f"tf_strategy tpu: no TPU found ({', '.join(tpu.VARIABLES)}, /dev/accel0); use {others}"


def _tensorflow_server_waits_for_all(s: Situation) -> str | None:
    trial = s.trial
    if trial.strategy != "tensorflow" or trial.consistency is Consistency.SYNC or not num_servers(trial):
        return None
    return (
        f"consistency {trial.consistency} at tensorflow: its parameter server makes one update per step "
        "from all workers' gradients; use the strategy parameter-server"
    )


def _tensorflow_needs_its_models(s: Situation) -> str | None:
    trial = s.trial
    if trial.strategy != "tensorflow":
        return None
    if trial.model.model_type not in _KERAS_MODELS:
        known = " and ".join(_KERAS_MODELS)
        return f"tensorflow with a model of type {trial.model.model_type}: Keras models exist for {known}"
    dropout = max(float(complete(trial.model).get(key) or 0) for key in _DROPOUTS)
    return f"tensorflow with a dropout of {dropout}: the Keras models have no dropout; set it to 0" if dropout else None


def _tensorflow_needs_fp32(s: Situation) -> str | None:
    trial = s.trial
    if trial.strategy != "tensorflow":
        return None
    if trial.precision is not Precision.FP32:
        return (
            f"tensorflow with precision {trial.precision}: Keras keeps fp32 variables even with 16-bit "
            "compute; use fp32"
        )
    if trial.activation_checkpointing:
        return "activation_checkpointing at tensorflow: the Keras models keep all activations; set it to false"
    return None


def _tensorflow_has_one_of_each(s: Situation) -> str | None:
    trial = s.trial
    if trial.strategy != "tensorflow":
        return None
    if (refused := optimizer_refused(s)) is not None:
        return refused
    if trial.attention is not Attention.SDPA:
        return f"attention {trial.attention} at tensorflow: the Keras models have their own attention; leave it at sdpa"
    return None


ENVIRONMENT_RULES = rules_of(globals())
"""Applied among the rules of strategies (strategy_rules.py)."""
