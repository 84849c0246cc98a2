"""Names for the trials of one run, short and never alike: what trials share is said once, above the tables.

An axis on which all trials agree is in no name. One on which more than two thirds agree is in the names of the
others only: in a sweep of stages on eight GPUs, `zero2` is on eight and `single n1` says that it is not.

A prediction must not pass for a measurement: where trials differ in how their figures are obtained, each predicted one
says so, however many they are; where none was measured, a line of its own above the tables does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from zerobench.common.redaction import MARK, is_secret_name
from zerobench.common.units import brief
from zerobench.config.axes.axes import LABELS, ROWS
from zerobench.config.axes.axis import Label, Visibility
from zerobench.config.axes.axis_words import MEASURED, evidence_text
from zerobench.config.deepspeed import reads_key
from zerobench.config.deepspeed.case import left_out
from zerobench.config.trial.optimizers import deepspeeds_adamw, plain_optimizer
from zerobench.config.trial.trial import Offload, TrialSpec
from zerobench.report.words.column_units import plain

__all__ = ["DeepSpeedSettings", "brief", "evidence_text", "labels", "setting_text", "shared_lines"]

_USUAL_SHARE = 2 / 3


def _known(axis: str, text: Callable[[TrialSpec], str]) -> Callable[[TrialSpec], str]:
    """`text` where the trial's work is known in all that the label of `axis` says; nothing is said of it elsewhere."""
    fields = [
        name for name, row in ROWS.items() if axis in {name, row.said_by} and row.visibility is not Visibility.ALWAYS
    ]
    if axis == "model":  # an unknown one has the name of its script
        return text
    return lambda spec: text(spec) if all(map(spec.knows, fields)) else ""


_LABELS: Mapping[str, Label] = {
    name: replace(label, short=_known(name, label.short), sentence=_known(name, label.sentence))
    for name, label in LABELS.items()
}


def labels(specs: Sequence[TrialSpec]) -> list[str]:
    """One name for each of `specs`; no two are alike.

    Where the axes do not tell two trials apart the path of the DeepSpeed file does, the folder on NVMe, or the start of
    the config hash (another seed, say), and where even that is equal, the position.
    """
    implied = _implied(specs)
    varied = {name: label for name, label in _LABELS.items() if name not in implied}
    usual = {name: _usual(label, [label.short(spec) for spec in specs]) for name, label in varied.items()}
    settings = DeepSpeedSettings(specs)
    names = [_label(spec, usual, settings) for spec in specs]
    for paths in ([spec.ds_config_file or "" for spec in specs], [spec.nvme_path or "" for spec in specs]):
        if len({*paths} - {""}) > 1:
            names = [plain(name) for name in _tell_apart(names, paths.__getitem__)]
    names = _tell_apart(names, lambda index: specs[index].config_hash[:6])
    return _tell_apart(names, lambda index: f"#{index + 1}")


def all_words(spec: TrialSpec) -> set[str]:
    """Words that a name of the trial may have, whatever others have: `mb1` also where all trials have it."""
    return {word for label in _LABELS.values() for word in label.short(spec).split()}


def _implied(specs: Sequence[TrialSpec]) -> Mapping[str, str]:
    """The axes whose different values follow from the rest of a name, with the rule: AdamW's kernel from where its
    states lie, gradient accumulation from the micro-batch size under one global batch size.
    """
    implied = {}
    kernels: dict[bool, list[str]] = {}
    for spec in specs:
        names = kernels.setdefault(spec.offload_optimizer is not Offload.NONE, [])
        names += [spec.optimizer] if spec.optimizer not in names else []
    if len(kernels) > 1 and all(_is_usual_kernel(spec) for spec in specs):
        offloaded, others = (" or ".join(sorted(kernels[is_offloaded], reverse=True)) for is_offloaded in (True, False))
        implied["optimizer"] = f"{offloaded} where optimizer states are offloaded, else {others}"
    accumulation = "gradient_accumulation_steps"
    sizes = {spec.global_batch_size if spec.knows(accumulation) else None for spec in specs}
    if len(sizes) == 1 and sizes != {None} and len({spec.gradient_accumulation_steps for spec in specs}) > 1:
        implied[accumulation] = f"global batch {sizes.pop():,}"
    return implied


def _is_usual_kernel(spec: TrialSpec) -> bool:
    kernel = deepspeeds_adamw(offloaded=spec.offload_optimizer is not Offload.NONE)
    return spec.optimizer is (plain_optimizer(kernel).name if spec.zero_stage is None else kernel)


def _usual(label: Label, values: Sequence[str]) -> str | None:
    """The value that names leave out: all trials' or most trials'; None where there is no such value."""
    value = _most_common(values)
    if all(other == value for other in values):
        return value
    return label.unmarked or (None if label.always else value)


def _most_common(values: Sequence[str]) -> str | None:
    """The value of more than two thirds; None where none has as many."""
    value, count = Counter(values).most_common(1)[0] if values else ("", 0)
    return value if count > _USUAL_SHARE * len(values) else None


def _label(spec: TrialSpec, usual: Mapping[str, str | None], settings: DeepSpeedSettings) -> str:
    parts = [value for name, common in usual.items() if (value := _LABELS[name].short(spec)) != common]
    return plain(" ".join(part for part in [*parts, settings.label(spec)] if part)) or plain(spec.strategy)


class DeepSpeedSettings:
    """The DeepSpeed keys that trials set for themselves, among those trials that run under DeepSpeed."""

    def __init__(self, specs: Sequence[TrialSpec]) -> None:
        engines = [spec for spec in specs if spec.zero_stage is not None]
        keys = list(dict.fromkeys(key for spec in engines for key in spec.ds_config if key != _STAGE))
        short = {key: key.rpartition(".")[2].removeprefix("stage3_").removesuffix("_size") for key in keys}
        counts = Counter(short.values())
        self._short = {
            key: name if counts[name] == 1 and name not in _UNTELLING else key for key, name in short.items()
        }
        self._usual = {key: _usual_setting(engines, key) for key in keys}
        self._given = {key: {setting_text(spec, key) for spec in engines if key in spec.ds_config} for key in keys}

    def label(self, spec: TrialSpec) -> str:
        """Unusual settings of a trial: `reduce_bucket=5e8`; `defaults` where it sets nothing that others set."""
        if spec.zero_stage is None:
            return ""
        settings = {key: setting_text(spec, key) for key in self._usual if _may_set(spec, key)}
        unusual = {key: value for key, value in settings.items() if value != self._usual[key]}
        left_out = [key for key, value in unusual.items() if value == _DEFAULT]
        unusual = dict(sorted(unusual.items(), key=lambda item: item[0] in left_out))  # its own first: others are cut
        parts = {
            key: f"{self._short[key]}={self._left_out(spec, key) if value == _DEFAULT else value}"
            for key, value in unusual.items()
        }
        usual = [key for key in settings if self._usual[key] not in (None, _DEFAULT)]
        if len(left_out) > 1 and len(left_out) == len(usual):  # all that others set
            parts = {key: text for key, text in parts.items() if key not in left_out} | {"": _DEFAULT + "s"}
        names = list(parts.values())
        more = [f"+{len(names) - _MOST_SETTINGS} more"] if len(names) > _MOST_SETTINGS else []
        return " ".join([*names[:_MOST_SETTINGS], *more])

    def _left_out(self, spec: TrialSpec, key: str) -> str:
        """DeepSpeed's own value of a key that the trial leaves out, unless another trial gives the same."""
        value = left_out(key, spec.zero_stage)
        return _DEFAULT if value is None or brief(value) in self._given[key] else brief(value)

    def usual(self) -> list[str]:
        """The settings that names leave out."""
        usual = {key: value for key, value in self._usual.items() if value not in (None, _DEFAULT)}
        return [f"{key.rpartition('.')[2] if self._short[key] != key else key} {value}" for key, value in usual.items()]


_DEFAULT = "default"
_STAGE = "zero_optimization.stage"
"""Keys that the strategy implies, where a script's configuration sets them."""
_MOST_SETTINGS = 2
_UNTELLING = ("enabled", "device", "type")
"""Last words of keys that mean nothing without their section."""


def _may_set(spec: TrialSpec, key: str) -> bool:
    """True if the trial sets the key, or leaves it out where DeepSpeed would read it."""
    return key in spec.ds_config or reads_key(spec, key)


def _usual_setting(engines: Sequence[TrialSpec], key: str) -> str | None:
    """The value of more than two thirds of those that may set the key; the others go with it where only one is set.

    None has as many, and only one value is set: names say who sets it, not who leaves it out.
    """
    values = [setting_text(spec, key) for spec in engines if _may_set(spec, key)]
    others = sorted(set(values) - {_DEFAULT})
    abstaining = len(engines) - len(values)
    common = _most_common([*values, *(others * abstaining if len(others) == 1 else [])])
    return _DEFAULT if common is None and len(others) == 1 else common


def setting_text(spec: TrialSpec, key: str) -> str:
    """The value that a trial's sweep gives a DeepSpeed key, as short as can be; a secret is not told."""
    if key not in spec.ds_config:
        return _DEFAULT
    return MARK if is_secret_name(key.rpartition(".")[2]) else brief(spec.ds_config[key])


def _tell_apart(names: Sequence[str], mark: Callable[[int], str]) -> list[str]:
    """`names`, those that occur more than once with the mark of their index behind them."""
    counts = Counter(names)
    return [f"{name} {mark(index)}".rstrip() if counts[name] > 1 else name for index, name in enumerate(names)]


def shared_lines(specs: Sequence[TrialSpec]) -> list[str]:
    """Settings that names leave out, and meanings of their letters, a line for each; none for no trials."""
    all_agree, most_agree, legends = [], [], []
    implied = _implied(specs)
    for name, label in _LABELS.items():
        if name in implied:
            all_agree.append(implied[name])
            continue
        values = [label.short(spec) for spec in specs]
        usual = _usual(label, values)
        spec = next((spec for spec, value in zip(specs, values, strict=True) if value == usual), None)
        is_shared = all(value == usual for value in values)
        if spec and is_shared and label.in_sentences and label.sentence(spec):
            all_agree.append(label.sentence(spec))
        if spec and not is_shared and label.sentence(spec):
            most_agree.append(label.sentence(spec))
        if not is_shared and label.legend:
            legends.append(label.legend)
    evidences = {evidence_text(spec) for spec in specs}
    lines = {
        "predicted": [evidences.pop()] if len(evidences) == 1 and evidences != {MEASURED} else [],
        "all trials": all_agree,
        "unless named otherwise": most_agree,
        "DeepSpeed settings, unless named otherwise": DeepSpeedSettings(specs).usual(),
        "in names": legends,
    }
    return [f"{start}: {plain(', '.join(parts))}" for start, parts in lines.items() if parts]
