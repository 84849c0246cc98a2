"""The cost in time of a change of a script's command: its own step, replayed, over that of the unchanged command."""

from typing import Any

from zerobench.config.derived.cluster import Cluster
from zerobench.config.trial.optimizers import deepspeeds_adamw
from zerobench.config.trial.trial import OFFLOADS, Offload, Precision, TrialSpec
from zerobench.estimate.clock.script_step import script_expected
from zerobench.estimate.clock.trace import unpack
from zerobench.launch.emulate.drafts import Draft
from zerobench.launch.emulate.figures import Try
from zerobench.launch.emulate.options import Kind
from zerobench.records.records import RankRecord
from zerobench.records.trials import PlainTrial, Trial
from zerobench.report.explain.changes import share_slower

_NUMBERS = {
    "micro_batch_size": ("train_micro_batch_size_per_gpu", Kind.BATCH),
    "gradient_accumulation_steps": ("gradient_accumulation_steps", Kind.PASSES),
}
"""Of the trial: their keys in a DeepSpeed configuration, and the options that scripts have for them."""


def tried_slower(script: Trial, attempt: Try, cluster: Cluster) -> float | None:
    """Increase in time per sample under a change, as a share of the time of `script`; None where either has no time.

    Per sample, since some scripts make no more passes where the micro batch is smaller.
    """
    if attempt.drafts is None or attempt.record is None or _unlocked(*attempt.drafts):
        return None
    before, after = attempt.drafts
    changed = script.spec.model_copy(update=changed_fields(script.spec, before, after))
    unchanged = next((rank for rank in script.ranks if rank.rank == attempt.record.rank), None)
    samples = [_samples(unchanged, before), _samples(attempt.record, after)]
    if unchanged is None or None in samples:
        return None
    usual_s = script_expected(PlainTrial(script.spec, script.record, (unchanged,)), cluster.gpu, cluster.links)
    changed_s = script_expected(PlainTrial(changed, script.record, (attempt.record,)), cluster.gpu, cluster.links)
    if usual_s is None or changed_s is None:
        return None
    return share_slower(changed_s.step_s / (samples[1] or 1), usual_s.step_s / (samples[0] or 1))


def _samples(rank: RankRecord | None, draft: Draft) -> int | None:
    """Micro-batches of the rank's step, times their size where the command says it; None without a trace."""
    if rank is None or rank.step_trace is None:
        return None
    return unpack(rank.step_trace).micro_batches * (_number(draft, *_NUMBERS["micro_batch_size"]) or 1)


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
