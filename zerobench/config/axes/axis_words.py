"""Text of axis values in trial names, sentences and columns."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from zerobench.config.axes.axis import Axis, Column, ColumnKind, Label, Reader
from zerobench.config.trial.trial import Compile, Evidence, Offload, TfStrategy, TrialSpec, Weights

COMPILED = {Compile.MODEL: "the model", Compile.BLOCKS: "each block"}
LOADED = {
    Weights.LOADED: "read from safetensors in the trial's precision",
    Weights.LOADED_FP32: "read from safetensors in fp32",
}
TF_STRATEGIES = {
    TfStrategy.MIRRORED: "TensorFlow's replicas in one process",
    TfStrategy.PARAMETER_SERVER: "TensorFlow's variables on a server",
    TfStrategy.TPU: "TensorFlow's replicas on a TPU",
}
"""The fourth has a process for each replica, as every strategy has, and needs no words."""

MEASURED = Evidence.MEASURED.value


def column(
    name: str,
    kind: ColumnKind = str,
    line: Callable[[Any], str] | None = str,
    *,
    silent: Any = None,
    value: Callable[[TrialSpec], Any] | None = None,
) -> Column:
    """Key column of a trial's field `name`, or of the result of `value`."""
    return Column(name, kind, value or (lambda spec: plain_value(getattr(spec, name))), line, silent)


def plain_value(value: Any) -> Any:
    """Convert a value for a table: text, integer or boolean."""
    if isinstance(value, StrEnum):
        return value.value
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def same(value: Callable[[TrialSpec], str], *, always: bool = False, in_sentences: bool = True) -> Label:
    """Label with one text for names and sentences."""
    return Label(value, value, always=always, in_sentences=in_sentences)


def number(letters: str, words: str, value: Callable[[TrialSpec], int], *, in_sentences: bool = True) -> Label:
    """Label such as `mb4` in a name, `micro batch 4` in a sentence."""
    return Label(
        lambda spec: f"{letters}{value(spec)}",
        lambda spec: f"{words} {value(spec)}",
        legend=f"{letters}: {words}",
        in_sentences=in_sentences,
    )


def unusual(
    field: str, short: Callable[[Any], str], sentence: Callable[[Any], str], legend: str = "", *, always: bool = False
) -> Label:
    """Label of a trial's field that is left out at the field's default."""
    usual = TrialSpec.model_fields[field].default

    def unless_usual(text: Callable[[Any], str]) -> Callable[[TrialSpec], str]:
        return lambda spec: "" if (value := getattr(spec, field)) == usual else text(value)

    return Label(unless_usual(short), unless_usual(sentence), legend, always=always)


def simple_axis(
    name: str,
    read: Reader,
    example: str,
    about: str,
    short: Callable[[Any], str],
    sentence: Callable[[Any], str],
    legend: str = "",
    *,
    kind: ColumnKind = str,
    always: bool = True,
    **more: Any,
) -> Axis:
    """Axis with one text for trial names and chart lines, left out at the default."""
    columns = (column(name, kind, short, silent=plain_value(TrialSpec.model_fields[name].default)),)
    return Axis(name, read, example, about, columns, unusual(name, short, sentence, legend, always=always), **more)


def offload_name(spec: TrialSpec) -> str:
    """`opt=cpu`, `opt=nvme param=cpu`, or nothing."""
    parts = {"opt": spec.offload_optimizer, "param": spec.offload_param}
    return " ".join(f"{name}={where}" for name, where in parts.items() if where is not Offload.NONE)


def offload_sentence(spec: TrialSpec) -> str:
    """`optimizer states offloaded to cpu and parameters offloaded to nvme`, or `no offload`."""
    parts = {"optimizer states": spec.offload_optimizer, "parameters": spec.offload_param}
    phrases = [f"{name} offloaded to {where}" for name, where in parts.items() if where is not Offload.NONE]
    return " and ".join(phrases) or "no offload"


def zeropp_name(spec: TrialSpec) -> str:
    """`hpz=8 qwZ qgZ`, in the paper's terms, or nothing."""
    size = spec.hpz_partition_size
    words = ["" if size is None else f"hpz={size}", "qwZ" * spec.quantized_weights, "qgZ" * spec.quantized_gradients]
    return " ".join(word for word in words if word)


def ranks_name(spec: TrialSpec) -> str:
    """`n8`, or `n2x4` over two nodes."""
    return f"n{spec.num_nodes}x{spec.gpus_per_node}" if spec.num_nodes > 1 else f"n{spec.world_size}"


def ranks_sentence(spec: TrialSpec) -> str:
    """`8 ranks on 2 nodes`."""
    nodes = f" on {spec.num_nodes} nodes" if spec.num_nodes > 1 else ""
    return f"{spec.world_size} {'rank' if spec.world_size == 1 else 'ranks'}{nodes}"


def checkpoint_name(spec: TrialSpec) -> str:
    """`save4`, `save4 to1`, `save4 kill=1@6`, or nothing."""
    checkpoint = spec.checkpoint
    if checkpoint is None:
        return ""
    to = "" if checkpoint.resume_world_size is None else f" to{checkpoint.resume_world_size}"
    fault = "" if checkpoint.fault is None else f" kill={checkpoint.fault.rank}@{checkpoint.fault.step}"
    return f"save{checkpoint.every_steps}{to}{fault}"


def evidence_text(spec: TrialSpec) -> str:
    """Source of the trial's figures: `measured`, `solo rank7`, `simulated on H200 SXM`, `formula`."""
    gpu, rank = spec.prediction.gpu, spec.prediction.rank
    which = "all ranks" if spec.prediction.all_ranks else f"rank{rank}" if rank else ""
    words = [spec.evidence.value, f"on {gpu}" if gpu is not None else "", which]
    return " ".join(word for word in words if word)


def measured_sentence(spec: TrialSpec) -> str:
    """Empty for predictions, which have a line of their own."""
    return MEASURED if spec.evidence is Evidence.MEASURED else ""
