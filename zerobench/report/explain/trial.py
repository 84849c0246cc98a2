"""`zerobench explain`: why a trial took what it took, and why it differs from another, from its ledger.

Every number is one of the ledger's, or a closed form's that is held against it; what no closed form gives is said to be
not explained. Settings are blamed only where their arithmetic gives the bytes that were seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from zerobench.common.units import counted
from zerobench.common.vocabulary import Category, Place, StepKind
from zerobench.records import store
from zerobench.records.instants import largest_peak
from zerobench.records.records import TrialRecord
from zerobench.records.trials import completed, refuse_impossible_values
from zerobench.report.explain.answer import pair_answer, trial_answer
from zerobench.report.explain.category import Explainer
from zerobench.report.explain.ending import ending_topic
from zerobench.report.explain.find import NamedTrial, find_trial, named_trials
from zerobench.report.explain.memory import categories_topic, peak_topic, start_up_stays
from zerobench.report.explain.pair import memory_topic, pair_of, specs_topic
from zerobench.report.explain.savings import Estimates, savings, savings_topic
from zerobench.report.explain.story import story_topic
from zerobench.report.explain.time import speed_difference, time_topic
from zerobench.report.explain.topic import Line, Topic, heads, says
from zerobench.report.explain.why import name_of
from zerobench.report.figures.environment_facts import Environment, at
from zerobench.report.figures.notes import listed
from zerobench.report.figures.software import logits_notes, predicted_with, releases
from zerobench.report.words.column_units import plain
from zerobench.report.words.labels import evidence_text


def explain(
    run: store.Run,
    name: str,
    other: tuple[store.Run, str] | None = None,
    *,
    estimates: Estimates | None = None,
) -> list[Topic]:
    """Explain the trial of `run` that `name` means, or its difference from a second one.

    `estimates`: closed forms, for savings that no trial of the run recorded.

    Raises UserError: a name means no trial or several, or a record that is read is torn, corrupt or newer.
    """
    with refuse_impossible_values(run.folder.trials):
        known = named_trials(run)
        first = find_trial(name, known)
        if other is None:
            return explain_trial(first, known, run.environment, estimates)
        second_run, second_name = other
        second = find_trial(second_name, known if second_run is run else named_trials(second_run))
        if first.label == second.label and second_run is not run:
            first, second = (
                replace(labelled, label=f"{labelled.label} @ {of.run_id}")
                for labelled, of in ((first, run), (second, second_run))
            )
        return explain_pair(first, second, _software(run, second_run), known, estimates)


def _software(a: store.Run, b: store.Run) -> list[Topic]:
    """The versions in which the runs of two trials differ, which were not asked and may be all that differs."""
    versions = [at(run.environment, "versions") for run in (a, b)]
    ours, theirs = (dict(recorded) if isinstance(recorded, Mapping) else {} for recorded in versions)
    names = [name for name in dict.fromkeys([*ours, *theirs]) if ours.get(name) != theirs.get(name)]
    changes = [f"{name}: {ours.get(name, 'none')} -> {theirs.get(name, 'none')}" for name in names]
    lines = says(*changes)
    return [Topic("Their runs differ in", lines, brief=heads(lines, 2))] if changes else []


def explain_trial(
    labelled: NamedTrial,
    known: Sequence[NamedTrial] = (),
    environment: Environment | None = None,
    estimates: Estimates | None = None,
) -> list[Topic]:
    """One trial: its ending, its peak by category, what would change it, host memory and time.

    `environment`: its run's, for records that do not name the releases they are of.
    """
    trial = labelled.trial
    work = trial.spec.config_hash
    alike = (other.trial for other in known if other.trial.spec.config_hash == work and other is not labelled)
    topics = [_heading(labelled, environment or {}), ending_topic(trial, alike, estimates), peak_topic(trial)]
    seen = largest_peak(trial, StepKind.STEADY, Place.DEVICE)
    if seen is not None:
        settings = savings(trial, seen, known, estimates)
        topics.insert(0, trial_answer(trial, labelled.label, seen, settings))
        topics.append(categories_topic(Explainer(trial, seen.rank), seen))
        topics += [savings_topic(settings, start_up_stays(trial, seen)), _host(labelled)]
    if completed(trial):
        topics.append(time_topic(trial))
    return [topic for topic in topics if topic is not None]


def _heading(labelled: NamedTrial, environment: Environment) -> Topic:
    spec, record = labelled.trial.spec, labelled.trial.record
    figures: dict[str, dict[str, object]] = {
        "trial": {"trial_id": labelled.trial.trial_id, "label": labelled.label, "status": record.status.value}
    }
    ranks = counted(spec.world_size, "rank")
    batch = f"{spec.micro_batch_size} x {spec.sequence_length:,} tokens"
    parts = [name_of(spec), ranks]
    parts += [batch] if spec.knows("micro_batch_size") and spec.knows("sequence_length") else []
    parts += [spec.precision.value] if spec.knows("precision") else []
    shape = ", ".join([spec.model.name, *parts])
    brief = [Line(f"{shape}; {evidence_text(spec)}, {record.status.words}")]
    lines = [*brief]
    where = _where(record)
    if where:
        lines.append(Line(where))
        figures["trial"] |= {"nodes": list(record.nodes), "job": record.job}
    figures["trial"] |= {"versions": releases([labelled.trial], environment)}
    lines += says(*predicted_with(environment, [labelled.trial]), *logits_notes(labelled.trial))
    notes = record.notes if completed(labelled.trial) else ()
    return Topic(f"{labelled.label} ({labelled.trial.trial_id})", [*lines, *says(*notes)], figures, brief)


def _where(record: TrialRecord) -> str:
    """`ran on node-1, node-2, by Slurm's job 123_4`; empty where neither was recorded."""
    nodes = [plain(name) for name in record.nodes]
    parts = [f"on {listed(nodes)}"] if nodes else []
    parts += [f"by Slurm's job {plain(record.job)}"] if record.job else []
    return f"ran {', '.join(parts)}" if parts else ""


def _host(labelled: NamedTrial) -> Topic | None:
    """Host memory where something is offloaded: else it holds the interpreter and a batch."""
    if not labelled.trial.spec.offloaded_to:
        return None
    instant = largest_peak(labelled.trial, StepKind.STEADY, Place.HOST)
    if instant is None:
        return None
    if any(rank.device_type == "cpu" for rank in labelled.trial.ranks):  # the rest of the process is the device's too
        held = dict(instant.categories)
        rest = held.pop(Category.REST_OF_PROCESS, 0)
        instant = replace(instant, total_bytes=instant.total_bytes - rest, categories=held)
    return categories_topic(Explainer(labelled.trial, instant.rank), instant, Place.HOST)


def explain_pair(
    a: NamedTrial,
    b: NamedTrial,
    software: Sequence[Topic] = (),
    known: Sequence[NamedTrial] = (),
    estimates: Estimates | None = None,
) -> list[Topic]:
    """Two trials: which needs more and why, what was asked differently, and what that made of memory and time."""
    pair = pair_of(a, b)
    if pair is None:
        return [specs_topic(a, b), *software, *_endings(a, b)]
    time = speed_difference(a.trial, b.trial, pair.names, (a.label, b.label))
    answer = pair_answer(pair, lambda trial, seen: savings(trial, seen, known, estimates))
    return [answer, specs_topic(a, b), *software, memory_topic(pair), story_topic(pair), time]


def _endings(a: NamedTrial, b: NamedTrial) -> list[Topic]:
    """Return the ending or the peak of each, where one of the two has no steady peak."""
    known = [ending_topic(labelled.trial, ()) or peak_topic(labelled.trial) for labelled in (a, b)]
    lines = [topic.lines if topic else says("No memory recorded.") for topic in known]
    return [Topic(a.label, lines[0]), Topic(b.label, lines[1])]
