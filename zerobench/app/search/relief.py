"""Try changes where nothing fits as asked: checkpointing, smaller micro batches, offload, then keys.

The closed forms rank the variants, and those that promise to fit are played, the fastest first (the walk of `tune`,
zerobench.app.search.fastest). The global batch stays: accumulation takes what a micro batch gives up. Nothing here runs
where something fits as asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zerobench.app.search.fastest import Cell, Say, asked_of_formulas, search
from zerobench.app.search.plan import Plan
from zerobench.app.search.played_rounds import Rounds
from zerobench.config.derived.varied import SELECTIVE, Variations
from zerobench.config.sweep.plan import offloaded
from zerobench.config.trial.recomputation import Checkpointing
from zerobench.config.trial.trial import TrialSpec
from zerobench.report.explain.choice import decide
from zerobench.report.explain.decided import Relief
from zerobench.report.figures.trial import TrialFigures

_WIDTH = 4
"""Trials of a round."""


@dataclass(frozen=True)
class _Request:
    """The parts of a request that relief may change."""

    trials: Sequence[TrialSpec]
    micro_batches: Sequence[int]
    checkpointings: Sequence[Checkpointing]

    @classmethod
    def of(cls, plan: Plan) -> _Request:
        trials = [item.trial for item in plan.planned if item.skipped is None]
        if plan.varied is not None:
            return cls(trials, plan.varied.micro_batches, plan.varied.checkpointings)
        sizes = {trial.micro_batch_size for trial in trials}
        return cls(trials, sorted(sizes), [trial.activation_checkpointing for trial in trials])

    def changes(self, spec: TrialSpec) -> tuple[str, ...]:
        """The kinds of changes that `spec` has and nothing that was asked."""
        kinds = {
            "activation checkpointing": bool(spec.activation_checkpointing) and not any(self.checkpointings),
            f"micro batch {spec.micro_batch_size}": spec.micro_batch_size not in self.micro_batches,
            "offload": bool(spec.offloaded_to) and not any(trial.offloaded_to for trial in self.trials),
            "other DeepSpeed keys": all(spec.ds_config != trial.ds_config for trial in self.trials),
        }
        return tuple(kind for kind, is_changed in kinds.items() if is_changed)


def relieve(plan: Plan, rounds: Rounds, say: Say) -> tuple[list[TrialFigures], Relief]:
    """Try to make something fit, in the run of `rounds`; the rows that were tried, and what they came to."""
    request = _Request.of(plan)
    trials = list(_add_offload(request.trials))
    say("nothing fits as asked: trying activation checkpointing, smaller micro batches, offload")
    rows: dict[str, TrialFigures] = {}
    changes = _changes(request, trials)
    for sets_keys in (False, True):
        cells = [cell for trial in trials for cell in _cells(plan, request, trial, sets_keys=sets_keys)]
        changes += ["smaller buckets"] if sets_keys and cells else []
        is_promising = any(row.has_room for cell in cells for row in cell.by_formula.values())
        if is_promising:
            search(cells, rounds.make, say, _WIDTH)
        elif sets_keys and not rows:  # the nearest ones, to know what is lacking
            search(cells, rounds.make, say, _WIDTH, most_rounds=1)
        rows |= {key: row for cell in cells for key, row in cell.tried.items()}
        if not cells and not rows:
            rows |= _play_unmodelled(plan, request, trials, rounds)
        if any(row.has_room for row in rows.values()):
            break
    found = [row for row in rows.values() if request.changes(row.spec)]
    return found, _relief(request, changes, found)


def _add_offload(trials: Sequence[TrialSpec]) -> Iterator[TrialSpec]:
    """Each trial, and with its states in host memory where that is neither asked nor ruled out, once."""
    seen: set[str] = set()
    for variant in [*trials, *(variant for trial in trials for variant in offloaded(trial))]:
        if variant.config_hash not in seen:
            seen.add(variant.config_hash)
            yield variant


def _cells(plan: Plan, request: _Request, trial: TrialSpec, *, sets_keys: bool) -> list[Cell]:
    """The variants of a trial by formula. A file of the user's own keeps its batch and keys: it says both."""
    is_file = trial.ds_config_file is not None
    variations = _variations(plan, request, trial, sets_keys=sets_keys and not is_file)
    return asked_of_formulas([trial], variations, plan.cluster)


def _variations(plan: Plan, request: _Request, trial: TrialSpec, *, sets_keys: bool) -> Variations:
    if plan.varied is not None:
        sequences, largest = plan.varied.sequences, max(plan.varied.micro_batches)
    else:
        sequences, largest = trial.micro_batch_size * trial.gradient_accumulation_steps, trial.micro_batch_size
    smallest = 1 if trial.ds_config_file is None else largest
    sizes = tuple(size for size in range(smallest, largest + 1) if sequences % size == 0)
    whole = all(checkpointing is True for checkpointing in request.checkpointings)
    return Variations(sizes, sequences, (True,) if whole else SELECTIVE, sets_keys=sets_keys)


def _play_unmodelled(
    plan: Plan, request: _Request, trials: Sequence[TrialSpec], rounds: Rounds
) -> dict[str, TrialFigures]:
    """Play what saves most of work without a closed form: whole checkpointing, then the smallest batch too."""
    rows: dict[str, TrialFigures] = {}
    for at in (-1, 0):
        families = [list(_variations(plan, request, trial, sets_keys=False).families(trial))[-1] for trial in trials]
        made = rounds.play([family[at] for family in families])
        rows |= {row.spec.config_hash: row for row in made}
        if any(row.has_room for row in made):
            break
    return rows


def _changes(request: _Request, trials: Sequence[TrialSpec]) -> list[str]:
    """The kinds of changes that are tried first, for people."""
    changes = ["activation checkpointing (whole, by operation, of every 2nd or 4th block)"]
    if max(request.micro_batches) > 1 and not any(trial.ds_config_file for trial in trials):
        changes.append("micro batches down to 1")
    if any(trial.offloaded_to for trial in trials):
        changes.append("offload to the host")
    return changes


def _relief(request: _Request, tried: Sequence[str], rows: Sequence[TrialFigures]) -> Relief:
    """Changes that were tried, and those that the choice needs if one made something fit."""
    *others, last = tried
    words = f"{', '.join(others)} and {last}" if others else last
    choice = decide(rows)
    if choice is None:
        return Relief(words)
    needed = request.changes(choice.best.spec)
    alike = [row for row in rows if row.has_room and request.changes(row.spec) == needed]
    return Relief(words, " and ".join(needed), len(alike))
