"""Trials of a plan from a user's file: a sweep, or a DeepSpeed configuration.

Any sweep file can be planned before the GPUs exist. Its ranks hold; `auto`, or none, means the cluster's. Its evidence
is replaced: every point is simulated, or computed by formula.

Of a DeepSpeed configuration `auto` and missing keys are filled in from the options, as transformers' Trainer would.
Values in both must agree (zerobench.config.deepspeed.build reports where they do not).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zerobench.common.errors import UserError
from zerobench.config.deepspeed import check_ds_config, load_user_config
from zerobench.config.deepspeed.check import AUTO
from zerobench.config.deepspeed.reading import device_of, get, optimizer_of, precision_of, zeropp_of
from zerobench.config.derived.batch import AUTOTP_SIZE
from zerobench.config.derived.cluster import Cluster
from zerobench.config.sweep.expand import PlannedTrial, expand
from zerobench.config.sweep.plan import checked, trial_on, usual_precision
from zerobench.config.sweep.sweep import Sweep, load_sweep
from zerobench.config.trial.optimizers import Optimizer, deepspeeds_adamw
from zerobench.config.trial.trial import Evidence, HyperparameterSpec, Offload, Precision


def sweep_gpu(name: str) -> str:
    """The one GPU that the sweep called `name` has. Raises UserError if it has none, or several."""
    names = {gpu for gpu in load_sweep(name).on_cuda.grid.get("gpu", []) if gpu not in {None, AUTO}}
    if len(names) != 1:
        several = f"the sweep has {len(names)}" if names else "the sweep has none"
        raise UserError(f"--gpu is missing: {several}; give the one to plan for, for example --gpu h200")
    return str(names.pop())


def sweep_points(
    name: str, cluster: Cluster, sets: Sequence[str] = (), evidence: Evidence = Evidence.SIMULATED
) -> tuple[Sweep, list[PlannedTrial]]:
    """Load the sweep called `name` for the cluster's GPU, and expand it, with skipped trials.

    Raises UserError, one line, for an invalid sweep, or if all of its points are impossible.
    """
    settings = [*sets, f"evidence={evidence}", f"gpu={cluster.gpu.name}", "rank=0"]
    sweep = load_sweep(name, settings, repeats=1)
    planned = expand(sweep, cluster.machine)
    if all(item.skipped for item in planned):
        reasons = [item.skipped.reason for item in planned if item.skipped]
        raise UserError(f"{sweep.where}: {reasons[0]}")
    return sweep, [item.predicted_with(host_memory_bytes=cluster.host_memory_bytes) for item in planned]


def own_config(path: str, work: Mapping[str, Any], cluster: Cluster) -> list[PlannedTrial]:
    """Trial of the DeepSpeed JSON at `path`, with the model and other axes from `work`.

    Raises UserError, one line: the file is invalid, has a key that DeepSpeed does not know, or contradicts `work`.
    """
    config = load_user_config(path)
    check_ds_config(config, path)
    _cuts_no_matrices(config, path)
    requested = {"precision": _precision(config, cluster), **_batch(config, path, work, cluster), **work}
    places = {name: Offload(_known(device_of(config, name), "none")) for name in ("offload_optimizer", "offload_param")}
    own = {
        **places,
        **zeropp_of(config),
        "strategy": f"zero{get(config, 'zero_optimization.stage')}",
        "optimizer": _optimizer(config, path, places["offload_optimizer"]),
        "ds_config_file": str(Path(path).resolve()) if Path(path).exists() else path,
    }
    hyperparameters = {"hyperparameters": _hyperparameters(config, work.get("hyperparameters", HyperparameterSpec()))}
    return checked([trial_on(cluster, own | requested | hyperparameters)], cluster)


def _cuts_no_matrices(config: Mapping[str, Any], path: str) -> None:
    """Raises UserError if the file enables AutoTP, which no plan predicts."""
    parts = get(config, AUTOTP_SIZE)
    if parts == AUTO or (isinstance(parts, int) and parts > 1):
        raise UserError(
            f"{path}: {AUTOTP_SIZE}: {parts}: AutoTP is not predicted; choices: 1, or a sweep of strategy tensor"
        )


def _known(value: Any, otherwise: Any) -> Any:
    return otherwise if value == AUTO or value is None else value


def _precision(config: Mapping[str, Any], cluster: Cluster) -> Precision:
    sections = {kind: get(config, f"{kind}.enabled") for kind in (Precision.BF16, Precision.FP16)}
    left_open = [kind for kind, enabled in sections.items() if enabled == AUTO]
    enabled_kinds = [kind for kind, enabled in sections.items() if enabled is True]
    if not left_open:
        return Precision(precision_of(config))
    usual = usual_precision(cluster)
    return enabled_kinds[0] if enabled_kinds else usual if usual in left_open else left_open[0]


def _optimizer(config: Mapping[str, Any], path: str, place: Offload) -> Optimizer:
    if _known(config.get("optimizer"), None) is None:
        return deepspeeds_adamw(offloaded=place is not Offload.NONE)
    return optimizer_of(config, path)


def _hyperparameters(config: Mapping[str, Any], asked: HyperparameterSpec) -> HyperparameterSpec:
    # Only the file's clipping is compared with the trial's; the others affect no byte
    clipping = _known(config.get("gradient_clipping"), None)
    return asked if clipping is None else HyperparameterSpec(**{**asked.model_dump(), "gradient_clipping": clipping})


def _batch(config: Mapping[str, Any], path: str, work: Mapping[str, Any], cluster: Cluster) -> dict[str, int]:
    """Micro batch and accumulation; of three batch keys DeepSpeed derives the third from two (runtime/config.py,
    _set_batch_related_parameters).
    """
    keys = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
    micro, accumulation, whole = (_known(config.get(key), None) for key in keys)
    ranks = cluster.num_gpus
    micro = work.get("micro_batch_size") if micro is None else micro
    if whole is not None and micro is None:
        micro = whole // (ranks * (accumulation or 1))
    if whole is not None and accumulation is None:
        accumulation = whole // (ranks * (micro or 1))
    batch = {"micro_batch_size": micro or 1, "gradient_accumulation_steps": accumulation or 1}
    if whole is not None and whole != ranks * batch["micro_batch_size"] * batch["gradient_accumulation_steps"]:
        raise UserError(
            f"{path}: train_batch_size {whole} is not {batch['micro_batch_size']} sequences x "
            f"{batch['gradient_accumulation_steps']} micro-steps x {ranks} GPUs"
        )
    return batch
