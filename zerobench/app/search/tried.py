"""What a change of a script's command costs in expected time: by closed forms, of the work that its tracker saw."""

from typing import Any

from zerobench.app.search.formula import formula_row
from zerobench.config.derived.cluster import Cluster
from zerobench.config.trial.optimizers import deepspeeds_adamw
from zerobench.config.trial.trial import OFFLOADS, Offload, Precision, TrialSpec
from zerobench.estimate.time.predicted_speed import WORK, work_of
from zerobench.launch.emulate.drafts import Draft
from zerobench.launch.emulate.options import Kind
from zerobench.report.explain.changes import share_slower
from zerobench.report.figures.trial import TrialFigures

_NUMBERS = {
    "micro_batch_size": ("train_micro_batch_size_per_gpu", Kind.BATCH),
    "gradient_accumulation_steps": ("gradient_accumulation_steps", Kind.PASSES),
}
"""Of the trial: their keys in a DeepSpeed configuration, and the options that scripts have for them."""


def tried_slower(trial: TrialSpec, before: Draft, after: Draft, cluster: Cluster) -> float | None:
    """By how much longer than `before` each token is expected to take under `after`, as a share.

    `trial` is the work of `before`. None where too little of it is known, or no time is expected of such work.
    """
    now = _seen(trial, cluster)
    if now is None or _unlocked(before, after):
        return None
    return share_slower(
        _token_s(now.model_copy(update=changed_fields(now, before, after)), cluster), _token_s(now, cluster)
    )


def script_row(trial: TrialSpec, cluster: Cluster) -> TrialFigures | None:
    """A script's work, as its tracker saw it, by closed forms; None where too little of it is known."""
    now = _seen(trial, cluster)
    return None if now is None else formula_row(now, cluster)


def why_no_work(trial: TrialSpec | None) -> str:
    """Why a script's work has no closed form; None of a trial: its ranks did not say that they train all of a model."""
    if trial is None:
        return "the script's tracker saw no model all of which is trained"
    unknown = sorted(WORK & set(() if trial.own is None else trial.own.unknown))
    if unknown:
        return f"the script does not tell its {', '.join(unknown)}".replace("_", " ")
    return f"no closed form of {trial.model.name}, a model of the script's own"


def _seen(trial: TrialSpec, cluster: Cluster) -> TrialSpec | None:
    work = work_of(trial)
    if work is None:
        return None
    there = {
        "num_nodes": cluster.num_nodes,
        "gpus_per_node": cluster.gpus_per_node,
        "prediction": trial.prediction.model_copy(update={"gpu": cluster.gpu.name}),
    }
    return work.model_copy(update={**there, "ds_config": {}, "ds_config_file": None})


def _token_s(trial: TrialSpec, cluster: Cluster) -> float | None:
    """Seconds of a step over its tokens: some scripts make no more passes where the micro batch is smaller."""
    row = formula_row(trial, cluster)
    return None if row is None or row.expected is None else row.expected.step_s / trial.global_batch_tokens


def changed_fields(trial: TrialSpec, before: Draft, after: Draft) -> dict[str, Any]:
    """Fields of the trial, the work of `before`, that `after` has otherwise."""
    settings: dict[str, Any] = {}
    if unlocked := _unlocked(before, after):
        settings["ds_config"] = {
            **trial.ds_config,
            **{f"zero_optimization.{name}.pin_memory": False for name in unlocked},
        }
    for name, (key, kind) in _NUMBERS.items():
        value = _number(after, key, kind)
        if value is not None and value != _number(before, key, kind):
            settings[name] = value
    if after.stage != before.stage:
        settings["strategy"] = f"zero{after.stage}"
    for name in OFFLOADS:
        if after.is_offloaded(name) != before.is_offloaded(name):
            settings[name] = Offload.CPU if after.is_offloaded(name) else Offload.NONE
    if "offload_optimizer" in settings and trial.optimizer in {deepspeeds_adamw(offloaded=on) for on in (False, True)}:
        settings["optimizer"] = deepspeeds_adamw(offloaded=after.is_offloaded("offload_optimizer"))
    if _is_on(after, Kind.CHECKPOINTING) and not _is_on(before, Kind.CHECKPOINTING):
        settings["activation_checkpointing"] = True
    if any(_is_on(after, kind) and not _is_on(before, kind) for kind in (Kind.BF16, Kind.MIXED_PRECISION)):
        settings["precision"] = Precision.BF16
    return settings


def _unlocked(before: Draft, after: Draft) -> list[str]:
    """What stays offloaded and is page-locked no more."""
    pinned = [[draft.offloaded(name).get("pin_memory") for name in OFFLOADS] for draft in (before, after)]
    return [name for name, was, now in zip(OFFLOADS, *pinned, strict=True) if was is True and now is False]


def _number(draft: Draft, key: str, kind: Kind) -> int | None:
    option = draft.option(kind)
    number = option.value if option is not None and isinstance(option.value, int) else None
    return number if draft.number(key) is None else draft.number(key)


def _is_on(draft: Draft, kind: Kind) -> bool:
    option = draft.option(kind)
    return option is not None and option.value not in (None, False, "no")
