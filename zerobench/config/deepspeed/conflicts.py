"""Refuses a user's file or overrides that contradict the trial: results would be filed under the wrong name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zerobench.common.errors import UserError
from zerobench.config.deepspeed.reading import device_of, get, optimizer_of, precision_of, zeropp_of
from zerobench.config.derived.batch import AUTOTP_SIZE, autotp_size, micro_batches_of_share
from zerobench.config.trial.optimizers import OPTIMIZERS
from zerobench.config.trial.trial import OFFLOADS, TrialSpec


def refuse_conflicts(config: Mapping[str, Any], trial: TrialSpec, where: str) -> None:
    """Raise UserError, naming both sides, if `config` contradicts `trial` or disturbs the measurement."""
    for key, theirs, field, ours in _facts(config, trial, where):
        if theirs != ours:
            raise UserError(f"{where}: {key} is {theirs!r}, but the trial's {field} is {ours!r}; make them equal")
    if get(config, "memory_breakdown"):
        # runtime/utils.py, see_memory_usage: it resets the peak counters.
        raise UserError(f"{where}: memory_breakdown: true resets the peaks that are measured here; leave it false")


def _facts(config: Mapping[str, Any], trial: TrialSpec, where: str) -> Iterator[tuple[str, Any, str, Any]]:
    """Facts in both: DeepSpeed's key, its value, the trial's field, its value."""
    yield "zero_optimization.stage", get(config, "zero_optimization.stage"), "zero_stage", trial.zero_stage or 0
    cut = autotp_size(trial)
    for key, field, ours in (
        ("train_micro_batch_size_per_gpu", "micro_batch_size", trial.micro_batch_size),
        ("gradient_accumulation_steps", "gradient_accumulation_steps", micro_batches_of_share(trial)),
        ("train_batch_size", "global_batch_size", trial.global_batch_size * cut),
        (AUTOTP_SIZE, f"ds_config.{AUTOTP_SIZE}", cut),
    ):
        theirs = get(config, key)
        yield key, max(1, theirs or 1) if key == AUTOTP_SIZE else theirs, field, ours
    yield from _zeropp_facts(config, trial)
    clipping = trial.hyperparameters.gradient_clipping
    yield "gradient_clipping", get(config, "gradient_clipping"), "hyperparameters.gradient_clipping", clipping
    yield "the precision of its bf16 and fp16 sections", precision_of(config), "precision", trial.precision.value
    for section in OFFLOADS:
        yield f"{section}.device", device_of(config, section), section, getattr(trial, section).value
    is_handed = OPTIMIZERS[trial.optimizer].deepspeed is None and get(config, "optimizer.type") is None
    made = trial.optimizer if is_handed else optimizer_of(config, where)
    yield "the optimizer it makes", made.value, "optimizer", trial.optimizer.value


def _zeropp_facts(config: Mapping[str, Any], trial: TrialSpec) -> Iterator[tuple[str, Any, str, Any]]:
    for axis, theirs in zeropp_of(config).items():
        yield f"zero_{axis}", theirs, axis, getattr(trial, axis)
