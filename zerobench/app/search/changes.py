"""Changes of a trial that make it fit, all predicted in one run: those that a script's command is changed by, too."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from json import dumps
from pathlib import Path
from typing import Any

from zerobench.app.search.plan_world import plan_world
from zerobench.app.search.predict import predict
from zerobench.app.search.tried import changed_fields
from zerobench.common.errors import UserError
from zerobench.config.deepspeed import drop_refused_keys, load_user_config
from zerobench.config.deepspeed.own_work import WORK, work_of
from zerobench.config.derived.cluster import Cluster
from zerobench.config.hardware.hardware import find_gpu
from zerobench.config.sweep.expand import PlannedTrial
from zerobench.config.sweep.plan import STEPS, checked, document, predicted, replace_evidence
from zerobench.config.sweep.plan_files import own_config
from zerobench.config.trial.trial import OFFLOADS, TrialSpec
from zerobench.launch.emulate.changes import UNLOCKED, Candidate, for_device, for_host
from zerobench.launch.emulate.drafts import Draft
from zerobench.launch.emulate.options import Option
from zerobench.launch.run.observer import Observer
from zerobench.records.folder import write_whole
from zerobench.records.store import load_run
from zerobench.records.trials import Trial, ended_trials, is_whole
from zerobench.report.explain.changes import MOST, ChangeOutcome, share_slower
from zerobench.report.explain.remedies import Remedy
from zerobench.report.figures.make import trial_figures
from zerobench.report.figures.trial import TrialFigures

_CHECKPOINTING = Option(dest="activation_checkpointing", names=["activation_checkpointing"], is_flag=True)
_AS_LARGE = 0.95
"""Of what the catalogue says: a driver keeps some of it for itself."""


ChangeNames = tuple[str, ...]
ChangedSpec = tuple[ChangeNames, TrialSpec]
"""What is changed, and the trial that it makes."""


@dataclass(frozen=True)
class ChangePredictions:
    """What the trial itself needs, and each change of it."""

    run: Path
    unchanged: TrialFigures | None
    """None where it could not be predicted."""
    changes: Sequence[ChangeOutcome]


def cluster_of(trial: Trial, host_memory_bytes: int | None = None) -> Cluster:
    """The GPUs that a trial ran on, or was predicted for; `host_memory_bytes` is a node's, where the trial says none.

    Raises UserError: the catalogue knows no such GPU.
    """
    spec = trial.spec
    name = spec.prediction.gpu or next((rank.device_name for rank in trial.ranks), "")
    gpu = find_gpu(name)
    if gpu is None:
        raise UserError(f"--changes: {name or 'this GPU'!r} is not in the hardware catalogue, which predictions need")
    seen = [device.total_bytes for node in trial.record.nvml for device in node.devices if device.total_bytes]
    if seen and min(seen) < _AS_LARGE * (gpu.memory_bytes or 0):  # a part of one, by MIG or a limit
        gpu = gpu.model_copy(update={"memory_bytes": min(seen), "usable_memory_bytes": None})
    return Cluster(gpu, spec.num_nodes, spec.gpus_per_node, spec.prediction.host_memory_bytes or host_memory_bytes)


def predict_changes(
    trial: TrialSpec,
    cluster: Cluster,
    reports: Path,
    observer: Observer,
    *,
    of_host: bool = False,
    has_activations: bool = True,
    remedies: Sequence[Remedy] = (),
) -> ChangePredictions:
    """Predict `trial` and what makes it smaller, on `cluster`; several changes together where too few single ones do.

    `of_host`: it was host memory that ran out. `has_activations`: activations were held then. `remedies`: changes that
    follow from what holds the largest parts of its peak, for any strategy.

    Raises UserError: nothing of it can be changed from here.
    """
    work = work_of(trial)
    by_holder = [] if work is None or of_host else list(_by_holder(work, remedies))
    if trial.zero_stage is None and not by_holder:
        raise UserError(f"--changes: ZeRO stages only; this trial is {trial.strategy}")
    if trial.zero_stage is None and work is not None:
        wanted: list[ChangedSpec] = [((), work)]
    else:
        wanted = list(changed_trials(trial, cluster, reports, of_host=of_host, has_activations=has_activations))
    tried = {spec.config_hash for _, spec in wanted}
    wanted += [change for change in by_holder if change[1].config_hash not in tried]
    single = [change for change in wanted if len(change[0]) <= 1]
    path, rows = _predicted(single, cluster, reports, observer)
    unchanged = rows.pop((), None)
    if sum(row is not None and row.fits for row in rows.values()) < MOST:
        several = [change for change in wanted if len(change[0]) > 1]
        rows |= _predicted(several, cluster, reports, observer)[1] if several else {}
    usual_s = _step_s(unchanged)
    return ChangePredictions(path, unchanged, [_changed(says, row, usual_s) for says, row in rows.items()])


def _by_holder(work: TrialSpec, remedies: Sequence[Remedy]) -> Iterator[ChangedSpec]:
    """Yield the remedies that leave the tokens of a step as they are: others are another training."""
    for remedy in remedies:
        made = drop_refused_keys(remedy.applied(work))
        if made.global_batch_tokens == work.global_batch_tokens:
            yield (remedy.setting,), made


def _predicted(
    wanted: Sequence[ChangedSpec], cluster: Cluster, reports: Path, observer: Observer
) -> tuple[Path, dict[ChangeNames, TrialFigures | None]]:
    """A row for each that could be tried; None of one that failed."""
    asked = {"steps": STEPS, "repeat": 0, "checkpoint": None}
    specs = [predicted(spec.model_copy(update=asked), cluster) for _, spec in wanted]
    planned = replace_evidence(checked(specs, cluster), plan_world(None, cluster.gpu, by_formula=False).evidence)
    sweep = document(f"changes-{planned[0].trial.model.name}", planned)
    path = predict(planned, sweep, reports, observer).whole().path
    rows = _rows(path, planned, cluster)
    tried = ((says, item) for (says, _), item in zip(wanted, planned, strict=True) if item.skipped is None)
    return path, {says: rows.get(item.trial.trial_id) for says, item in tried}


def changed_trials(
    trial: TrialSpec, cluster: Cluster, reports: Path, *, of_host: bool = False, has_activations: bool = True
) -> Iterator[tuple[tuple[str, ...], TrialSpec]]:
    """A trial of ZeRO's unchanged, and by each change with what it says: the cheapest first, then several together.

    Raises UserError: a script's, of which too little is known.
    """
    seen = work_of(trial)
    if seen is None:
        unknown = sorted(WORK & set(() if trial.own is None else trial.own.unknown))
        raise UserError(f"--changes: the script does not tell its {', '.join(unknown)}".replace("_", " "))
    trial = seen
    user_config = None if trial.ds_config_file is None else load_user_config(trial.ds_config_file)
    option = _CHECKPOINTING.model_copy(update={"value": bool(trial.activation_checkpointing)})
    start = Draft((), {**(user_config or {}), **_as_config(trial, user_config)}, options=(option,))
    yield (), trial
    for candidate in _candidates(start, of_host=of_host, has_activations=has_activations):
        says = tuple(words.partition(" (")[0] for words in candidate.says)
        made = drop_refused_keys(trial.model_copy(update=changed_fields(trial, start, candidate.draft)))
        if user_config is not None:
            names = ("model", "sequence_length", "attention", "activation_checkpointing")
            work = {name: getattr(made, name) for name in names}
            [planned] = own_config(keep_config(candidate.draft.ds or {}, reports), work, cluster)
            made = planned.trial
        yield says, made


def _candidates(start: Draft, *, of_host: bool, has_activations: bool) -> Iterator[Candidate]:
    return for_host(start, counts_locks=True) if of_host else for_device(start, has_activations=has_activations)


def changes_of_file(path: str, *, of_host: bool = False, has_activations: bool = True) -> list[str]:
    """Single changes of the DeepSpeed configuration at `path`, the cheapest first: none of them tried.

    Raises UserError: the file is none.
    """
    start = Draft((), load_user_config(path), options=(_CHECKPOINTING,))
    made = _candidates(start, of_host=of_host, has_activations=has_activations)
    return [draft.says[0].partition(" (")[0] for draft in made if len(draft.says) == 1]


def keep_config(config: Mapping[str, Any], reports: Path) -> str:
    """The path of a file with these keys, which is kept beside the runs."""
    text = dumps(config, indent=2, sort_keys=True)
    path = reports / "ds_configs" / f"{sha256(text.encode()).hexdigest()[:12]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text + "\n")
    return str(path)


def _as_config(trial: TrialSpec, user_config: Mapping[str, Any] | None) -> dict[str, Any]:
    """What of the trial can be changed, in DeepSpeed's words."""
    zero = dict((user_config or {}).get("zero_optimization", {}))
    places = {
        name: {
            "device": getattr(trial, name).value,
            "pin_memory": trial.ds_config.get(f"zero_optimization.{name}.pin_memory", True),
        }
        for name in OFFLOADS
        if name not in zero
    }
    return {
        "train_micro_batch_size_per_gpu": trial.micro_batch_size,
        "gradient_accumulation_steps": trial.gradient_accumulation_steps,
        "zero_optimization": {**zero, "stage": trial.zero_stage, **places},
    }


def _rows(path: Path, planned: Sequence[PlannedTrial], cluster: Cluster) -> dict[str, TrialFigures]:
    """The figures of the trials that could be predicted, by their ids."""
    known = {item.trial.trial_id for item in planned}
    whole = (trial for trial in ended_trials(load_run(path)) if trial.trial_id in known and is_whole(trial))
    return {trial.trial_id: trial_figures(trial, trial.trial_id, cluster) for trial in whole}


def _changed(says: ChangeNames, row: TrialFigures | None, usual_s: float | None) -> ChangeOutcome:
    if row is None:
        return ChangeOutcome(says, fits=False, needed_bytes=None)
    host = row.host.needed_bytes if row.offloads() else None
    slower = None if UNLOCKED in says else share_slower(_step_s(row), usual_s)
    return ChangeOutcome(says, row.fits, row.device.needed_bytes, host, slower)


def _step_s(row: TrialFigures | None) -> float | None:
    return None if row is None or row.expected is None else row.expected.step_s
