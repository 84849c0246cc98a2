"""Names for the trials of one run, short and never alike: what trials share is said once, above the tables.

An axis on which all trials agree is in no name. One on which more than two thirds agree is in the names of the
others only: in a sweep of stages on eight GPUs, `zero2` is on eight and `single n1` says that it is not.

A prediction must not pass for a measurement: where trials differ in how their figures are come by, each predicted one
says so, however many they are; where none was measured, a line of its own above the tables does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zerobench.ds_config import would_read
from zerobench.redaction import MARK, is_secret_name
from zerobench.report.column_units import plain
from zerobench.spec.trial import (
    Compile,
    Compression,
    Consistency,
    CrossEntropy,
    Evidence,
    Offload,
    TfStrategy,
    TrialSpec,
)
from zerobench.units import format_bytes

_USUAL_SHARE = 2 / 3


@dataclass(frozen=True)
class _Axis:
    """How a name writes the value of an axis, and how a sentence does."""

    short: Callable[[TrialSpec], str]
    sentence: Callable[[TrialSpec], str]
    legend: str = ""
    """What the letters in the short form mean."""
    always: bool = False
    """Whether a value that is usual is in the name all the same."""
    unmarked: str | None = None
    """The one value that names leave out where trials differ, whatever is usual."""


def _same(value: Callable[[TrialSpec], str], *, always: bool = False) -> _Axis:
    return _Axis(value, value, always=always)


def _number(letters: str, words: str, value: Callable[[TrialSpec], int]) -> _Axis:
    return _Axis(
        lambda spec: f"{letters}{value(spec)}", lambda spec: f"{words} {value(spec)}", legend=f"{letters}: {words}"
    )


def _offload(spec: TrialSpec) -> str:
    """`opt=cpu`, `opt=nvme param=cpu`, or nothing."""
    parts = {"opt": spec.offload_optimizer, "param": spec.offload_param}
    return " ".join(f"{name}={where}" for name, where in parts.items() if where is not Offload.NONE)


def _offload_sentence(spec: TrialSpec) -> str:
    parts = {"optimizer states": spec.offload_optimizer, "parameters": spec.offload_param}
    said = [f"{name} offloaded to {where}" for name, where in parts.items() if where is not Offload.NONE]
    return " and ".join(said) or "no offload"


def _zeropp(spec: TrialSpec) -> str:
    """`hpz=8 qwZ qgZ`, as the paper calls them, or nothing."""
    size = spec.hpz_partition_size
    words = ["" if size is None else f"hpz={size}", "qwZ" * spec.quantized_weights, "qgZ" * spec.quantized_gradients]
    return " ".join(word for word in words if word)


def _ranks(spec: TrialSpec) -> str:
    """`n8`, or `n2x4` over two nodes."""
    return f"n{spec.num_nodes}x{spec.gpus_per_node}" if spec.num_nodes > 1 else f"n{spec.world_size}"


def _ranks_sentence(spec: TrialSpec) -> str:
    nodes = f" on {spec.num_nodes} nodes" if spec.num_nodes > 1 else ""
    return f"{spec.world_size} {'rank' if spec.world_size == 1 else 'ranks'}{nodes}"


def _checkpoint(spec: TrialSpec) -> str:
    """`save4`, `save4 to1`, `save4 kill=1@6`, or nothing."""
    asked = spec.checkpoint
    if asked is None:
        return ""
    to = "" if asked.resume_world_size is None else f" to{asked.resume_world_size}"
    fault = "" if asked.fault is None else f" kill={asked.fault.rank}@{asked.fault.step}"
    return f"save{asked.every_steps}{to}{fault}"


def evidence_text(spec: TrialSpec) -> str:
    """How the trial's figures are come by: `measured`, `solo rank7`, `simulated on H200 SXM`, `formula`."""
    gpu, rank = spec.prediction.gpu, spec.prediction.rank
    which = "all ranks" if spec.prediction.all_ranks else f"rank{rank}" if rank else ""
    words = [spec.evidence.value, f"on {gpu}" if gpu is not None else "", which]
    return " ".join(word for word in words if word)


_MEASURED = Evidence.MEASURED.value


def _measured_sentence(spec: TrialSpec) -> str:
    """Empty for predictions, which have a line of their own."""
    return _MEASURED if spec.evidence is Evidence.MEASURED else ""


def _known(axis: _Axis, *fields: str) -> _Axis:
    """`axis` where the trial's work is known in all of `fields`; nothing is said of it elsewhere."""

    def where_known(value: Callable[[TrialSpec], str]) -> Callable[[TrialSpec], str]:
        return lambda spec: value(spec) if spec.own is None or all(map(spec.knows, fields)) else ""

    if not fields:
        return axis
    return replace(axis, short=where_known(axis.short), sentence=where_known(axis.sentence))


_FIELDS: Mapping[str, tuple[str, ...]] = {
    "offload": ("offload_optimizer", "offload_param"),
    "micro batch": ("micro_batch_size",),
    "accumulation": ("gradient_accumulation_steps",),
    "sequence": ("sequence_length",),
    "precision": ("precision",),
    "optimizer": ("optimizer",),
    "checkpointing": ("activation_checkpointing",),
    "attention": ("attention",),
}
"""The fields that an axis tells, where a user's own script may not have told them."""

_COMPILED = {Compile.MODEL: "the model", Compile.BLOCKS: "each block"}
_TF_STRATEGIES: Mapping[TfStrategy, str] = {
    TfStrategy.MIRRORED: "TensorFlow's replicas in one process",
    TfStrategy.PARAMETER_SERVER: "TensorFlow's variables on a server",
    TfStrategy.TPU: "TensorFlow's replicas on a TPU",
}
"""Those that are said; the other one has a process for each replica, as every strategy has."""

_EVERY_AXIS: Mapping[str, _Axis] = {
    "model": _same(lambda spec: spec.model.name),
    "strategy": _same(lambda spec: spec.strategy, always=True),
    "offload": _Axis(_offload, _offload_sentence, "opt=, param=: where optimizer states and parameters are offloaded"),
    "ranks": _Axis(_ranks, _ranks_sentence, "n: ranks"),
    "micro batch": _number("mb", "micro batch", lambda spec: spec.micro_batch_size),
    "accumulation": _number("ga", "gradient accumulation", lambda spec: spec.gradient_accumulation_steps),
    "batch ramp": _Axis(
        lambda spec: f"ramp={spec.batch_ramp}" if spec.batch_ramp else "",
        lambda spec: f"batch from {spec.batch_ramp.start_tokens} tokens on" if spec.batch_ramp else "",
        "ramp=: tokens of the first batch + increment / tokens of training until it is full",
        always=True,
    ),
    "sequence": _number("seq", "sequence length", lambda spec: spec.sequence_length),
    "precision": _same(lambda spec: spec.precision.value),
    "optimizer": _same(lambda spec: spec.optimizer.value),
    "checkpointing": _Axis(
        lambda spec: "ckpt" if spec.activation_checkpointing else "",
        lambda spec: f"activation checkpointing {'on' if spec.activation_checkpointing else 'off'}",
        "ckpt: activation checkpointing",
    ),
    "attention": _same(lambda spec: spec.attention.value),
    "cross entropy": _Axis(
        lambda spec: f"ce={spec.cross_entropy}" if spec.cross_entropy is not CrossEntropy.FULL else "",
        lambda spec: f"{spec.cross_entropy} cross entropy" if spec.cross_entropy is not CrossEntropy.FULL else "",
        "ce=: head and loss some tokens at a time, logits never whole; model_dtype: logits never in fp32",
        always=True,
    ),
    "compile": _Axis(
        lambda spec: f"compile={spec.compile}" if spec.compile is not Compile.NONE else "",
        lambda spec: f"torch.compile of {_COMPILED[spec.compile]}" if spec.compile is not Compile.NONE else "",
        "compile=: torch.compile of the model, or of each of its blocks",
        always=True,
    ),
    "consistency": _Axis(
        lambda spec: spec.consistency.value if spec.consistency is Consistency.ASYNC else "",
        lambda spec: "gradients applied as they come" if spec.consistency is Consistency.ASYNC else "",
        "async: the server applies each gradient as it comes",
        always=True,
    ),
    "checkpoint": _Axis(
        _checkpoint,
        lambda spec: f"saved {spec.checkpoint}" if spec.checkpoint else "",
        "save: a checkpoint after every so many steps; to: ranks that it is resumed on; kill=rank@step: a rank dies",
    ),
    "tf_strategy": _Axis(
        lambda spec: spec.tf_strategy.value if spec.tf_strategy in _TF_STRATEGIES else "",
        lambda spec: _TF_STRATEGIES.get(spec.tf_strategy, ""),
        "mirrored, parameter-server, tpu: TensorFlow's replicas in one process, its server, or a TPU's cores",
        always=True,
    ),
    "schedule": _Axis(
        lambda spec: spec.pipeline_schedule.value if spec.strategy == "pipeline" else "",
        lambda spec: f"stages in the order of {spec.pipeline_schedule}" if spec.strategy == "pipeline" else "",
        "1f1b, gpipe: schedule of the pipeline",
    ),
    "data": _same(lambda spec: f"{spec.data.kind.value} data"),
    "bucket": _Axis(
        lambda spec: f"bucket={brief(spec.bucket_bytes)}" if spec.bucket_bytes else "",
        lambda spec: f"buckets of {format_bytes(spec.bucket_bytes)}" if spec.bucket_bytes else "",
        "bucket=: bytes of DDP's buckets",
    ),
    "compression": _Axis(
        lambda spec: spec.compression.value if spec.compression is not Compression.NONE else "",
        lambda spec: f"gradients compressed by {spec.compression}" if spec.compression is not Compression.NONE else "",
        always=True,
    ),
    "resharding": _Axis(
        lambda spec: "" if spec.reshard_after_forward else "kept",
        lambda spec: "" if spec.reshard_after_forward else "parameters kept gathered after forward",
        "kept: parameters stay gathered after forward (reshard_after_forward false)",
    ),
    "zero init": _Axis(
        lambda spec: "" if spec.zero_init else "whole",
        lambda spec: "" if spec.zero_init else "built whole on each rank, then partitioned",
        "whole: stage 3 of a model that every rank built whole first (zero_init false)",
        always=True,
    ),
    "zero++": _Axis(
        _zeropp,
        lambda spec: f"ZeRO++: {_zeropp(spec)}" if _zeropp(spec) else "",
        "hpz=: ranks that keep a second copy of the parameters, qwZ, qgZ: weights, gradients quantized on their way",
        always=True,
    ),
    "mics": _Axis(
        lambda spec: f"mics={spec.mics_shard_size}" if spec.mics_shard_size else "",
        lambda spec: f"states divided among {spec.mics_shard_size} ranks" if spec.mics_shard_size else "",
        "mics=: ranks that divide model states among them",
        always=True,
    ),
    "threads": _Axis(
        lambda spec: f"t{spec.threads_per_rank}" if spec.threads_per_rank else "",
        lambda spec: f"threads of each rank {spec.threads_per_rank}" if spec.threads_per_rank else "",
        "t: threads of each rank",
    ),
    "config file": _same(lambda spec: spec.ds_config_file or ""),
    "evidence": _Axis(
        evidence_text,
        _measured_sentence,
        f"{', '.join(world for world in Evidence if world is not Evidence.MEASURED)}: predicted, not measured",
        unmarked=_MEASURED,
    ),
    "repeat": _number("rep", "repeat", lambda spec: spec.repeat),
}
"""The order is that of a name's parts."""

_AXES: Mapping[str, _Axis] = {name: _known(axis, *_FIELDS.get(name, ())) for name, axis in _EVERY_AXIS.items()}


def labels(specs: Sequence[TrialSpec]) -> list[str]:
    """One name for each of `specs`; no two are alike.

    Where the axes do not tell two trials apart the folder on NVMe does, or the start of the config hash (another
    seed, say), and where even that is equal, the position.
    """
    usual = {name: _usual(axis, [axis.short(spec) for spec in specs]) for name, axis in _AXES.items()}
    settings = DeepSpeedSettings(specs)
    names = [_label(spec, usual, settings) for spec in specs]
    told = names
    if len({spec.nvme_path for spec in specs} - {None}) > 1:
        told = [plain(name) for name in _tell_apart(names, lambda index: specs[index].nvme_path or "")]
    told = _tell_apart(told, lambda index: specs[index].config_hash[:6])
    return _tell_apart(told, lambda index: f"#{index + 1}")


def _usual(axis: _Axis, values: Sequence[str]) -> str | None:
    """The value that names leave out: all trials' or most trials'; None where there is no such value."""
    value = _most_common(values)
    if all(one == value for one in values):
        return value
    return axis.unmarked or (None if axis.always else value)


def _most_common(values: Sequence[str]) -> str | None:
    """The value of more than two thirds; None where none has as many."""
    value, count = Counter(values).most_common(1)[0] if values else ("", 0)
    return value if count > _USUAL_SHARE * len(values) else None


def _label(spec: TrialSpec, usual: Mapping[str, str | None], settings: DeepSpeedSettings) -> str:
    parts = [value for name, axis in _AXES.items() if (value := axis.short(spec)) != usual[name]]
    return plain(" ".join(part for part in [*parts, settings.label(spec)] if part)) or plain(spec.strategy)


class DeepSpeedSettings:
    """The DeepSpeed keys that trials set for themselves, among those trials that run under DeepSpeed."""

    def __init__(self, specs: Sequence[TrialSpec]) -> None:
        engines = [spec for spec in specs if spec.zero_stage is not None]
        keys = list(dict.fromkeys(key for spec in engines for key in spec.ds_config))
        short = {key: key.rpartition(".")[2].removesuffix("_size") for key in keys}
        counts = Counter(short.values())
        self._short = {key: name if counts[name] == 1 else key for key, name in short.items()}
        self._usual = {key: _usual_setting(engines, key) for key in keys}

    def label(self, spec: TrialSpec) -> str:
        """What of a trial's settings is unusual: `reduce_bucket=5e8`; `defaults` where it sets nothing that
        others set.
        """
        if spec.zero_stage is None:
            return ""
        settings = {key: setting_text(spec, key) for key in self._usual if _may_set(spec, key)}
        unusual = {key: value for key, value in settings.items() if value != self._usual[key]}
        left_out = [key for key, value in unusual.items() if value == _DEFAULT]
        said = {key: f"{self._short[key]}={value}" for key, value in unusual.items()}
        usual = [key for key in settings if self._usual[key] not in (None, _DEFAULT)]
        if len(left_out) > 1 and len(left_out) == len(usual):  # all that others set
            said = {key: text for key, text in said.items() if key not in left_out} | {"": _DEFAULT + "s"}
        names = list(said.values())
        more = [f"+{len(names) - _MOST_SETTINGS} more"] if len(names) > _MOST_SETTINGS else []
        return " ".join([*names[:_MOST_SETTINGS], *more])

    def usual(self) -> list[str]:
        """The settings that names leave out."""
        usual = {key: value for key, value in self._usual.items() if value not in (None, _DEFAULT)}
        return [f"{key.rpartition('.')[2]} {value}" for key, value in usual.items()]


_DEFAULT = "default"
_MOST_SETTINGS = 2


def _may_set(spec: TrialSpec, key: str) -> bool:
    """Whether the trial sets the key, or leaves it out where DeepSpeed would read it."""
    return key in spec.ds_config or would_read(spec, key)


def _usual_setting(engines: Sequence[TrialSpec], key: str) -> str | None:
    """The value of more than two thirds of those that may set the key; the others go with it where only one is set."""
    values = [setting_text(spec, key) for spec in engines if _may_set(spec, key)]
    told = sorted(set(values) - {_DEFAULT})
    abstaining = len(engines) - len(values)
    return _most_common([*values, *(told * abstaining if len(told) == 1 else [])])


def setting_text(spec: TrialSpec, key: str) -> str:
    """The value that a trial's sweep gives a DeepSpeed key, as short as can be; a secret is not told."""
    if key not in spec.ds_config:
        return _DEFAULT
    return MARK if is_secret_name(key.rpartition(".")[2]) else brief(spec.ds_config[key])


def brief(value: Any) -> str:
    """A number as briefly as it can be written exactly: 5e8 for 500000000."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if abs(value) >= 1e300:  # a larger integer has no float to write it as
        return str(value)
    exact = [text for text in (str(value), f"{value:g}") if float(text) == value]
    return min(exact, key=len, default=str(value)).replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")


def _tell_apart(names: Sequence[str], mark: Callable[[int], str]) -> list[str]:
    """`names`, those that occur more than once with the mark of their index behind them."""
    counts = Counter(names)
    return [f"{name} {mark(index)}".rstrip() if counts[name] > 1 else name for index, name in enumerate(names)]


_QUIET = {"data", "config file", "repeat"}


def shared_lines(specs: Sequence[TrialSpec]) -> list[str]:
    """What names leave out and what their letters mean, a line for each; none for no trials."""
    all_agree, most_agree, legends = [], [], []
    for name, axis in _AXES.items():
        values = [axis.short(spec) for spec in specs]
        usual = _usual(axis, values)
        spec = next((spec for spec, value in zip(specs, values, strict=True) if value == usual), None)
        is_shared = all(value == usual for value in values)
        if spec and is_shared and name not in _QUIET and axis.sentence(spec):
            all_agree.append(axis.sentence(spec))
        if spec and not is_shared and axis.sentence(spec):
            most_agree.append(axis.sentence(spec))
        if not is_shared and axis.legend:
            legends.append(axis.legend)
    evidences = {evidence_text(spec) for spec in specs}
    lines = {
        "all predicted, not measured": [evidences.pop()] if len(evidences) == 1 and evidences != {_MEASURED} else [],
        "all": all_agree,
        "unless a name says otherwise": most_agree,
        "DeepSpeed's settings, unless a name says otherwise": DeepSpeedSettings(specs).usual(),
        "in names": legends,
    }
    return [f"{start}: {plain(', '.join(parts))}" for start, parts in lines.items() if parts]
