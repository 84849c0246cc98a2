"""Trials of `zerobench plan`: each ZeRO stage with each offload, for one model on one cluster.

Adapters in fp32 next to a 16-bit model use torch's own strategies instead, since no ZeRO stage supports them.

The trials are predictions for a catalogued GPU, simulated unless another evidence is requested. Impossible ones are
listed as skipped with their reason, like those of a sweep. The optimizer follows the states: FusedAdam on the device,
CPUAdam if they are offloaded; everything else is DeepSpeed's default.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from zerobench.common.errors import UserError, unknown_choice
from zerobench.config.axes.axes import READERS, read_axis
from zerobench.config.derived.cluster import Cluster
from zerobench.config.derived.strategy import strategy_info
from zerobench.config.models.causal_models import takes_attention
from zerobench.config.rules.rules import Skip, find_skip
from zerobench.config.rules.situation import Situation
from zerobench.config.sweep.expand import NOWHERE, PlannedTrial
from zerobench.config.trial.adapter import is_wide
from zerobench.config.trial.optimizers import deepspeeds_adamw, plain_optimizer
from zerobench.config.trial.trial import (
    Attention,
    Blocks,
    Evidence,
    Offload,
    Precision,
    PredictionSpec,
    StepsSpec,
    TrialSpec,
)

STEPS = StepsSpec(warmup=0, memory=1, timed=1)
"""A predicted step equals the next: the first one and one more suffice."""

STAGES = (0, 1, 2, 3)

_PLACES = {
    0: ((Offload.NONE,), (Offload.NONE,)),
    1: ((Offload.NONE, Offload.CPU), (Offload.NONE,)),
    2: ((Offload.NONE, Offload.CPU), (Offload.NONE,)),
    3: (tuple(Offload), tuple(Offload)),
}
"""By stage: possible places of optimizer states and of parameters (DeepSpeed offloads nothing at stage 0, parameters
only at stage 3, and swaps to NVMe only at stage 3)."""


def read_work(options: Mapping[str, Any]) -> dict[str, Any]:
    """Read `options` (axis to text, None if not given) as a sweep would.

    Raises UserError, one line that begins with the option.
    """
    work = {}
    for axis, raw in options.items():
        if raw is not None:
            try:
                [work[axis]] = read_axis(axis, raw, _WHERE)
            except UserError as error:
                raise UserError(_option_error(axis, str(error))) from None
    return work


_WHERE = "plan"
_OPTIONS = {
    "micro_batch_size": "micro-batch",
    "gradient_accumulation_steps": "gradient-accumulation",
    "adapter": "lora",
}
"""Options whose name differs from their axis."""


def _option_error(axis: str, fault: str) -> str:
    """Rewrite `fault`, which begins with the axis, for its option."""
    text = fault.removeprefix(f"{_WHERE}: {axis}: ")
    return f"--{_OPTIONS.get(axis, axis.replace('_', '-'))}: {text.replace('lora-', '') if axis == 'adapter' else text}"


def read_stages(text: str | None) -> tuple[int, ...] | None:
    """Parse `--stage 2,3`; None for None. Raises UserError for an unknown stage."""
    if text is None:
        return None
    names = [part.strip() for part in text.split(",")]
    for name in names:
        if name not in map(str, STAGES):
            raise unknown_choice("--stage", name, map(str, STAGES))
    return tuple(dict.fromkeys(map(int, names)))


def usual_precision(cluster: Cluster) -> Precision:
    """bf16, or fp16 on a GPU without bf16."""
    return Precision.BF16 if cluster.machine.supports_bf16 else Precision.FP16


def cells(work: Mapping[str, Any], cluster: Cluster, stages: Sequence[int] | None = None) -> list[PlannedTrial]:
    """Trials for each stage and offload; `work` maps axes to values (model and so on).

    Without `stages` all of them; for adapters that no stage supports, each stage once with its reason, and torch's
    strategies. Raises UserError if all are impossible, with the first one's reason.
    """
    if stages is None and is_wide(work.get("adapter")):
        ways = [*((f"zero{stage}", Offload.NONE, Offload.NONE) for stage in STAGES), *_torch_ways(cluster)]
    else:
        chosen_stages = STAGES if stages is None else stages
        ways = [(f"zero{stage}", *places) for stage in chosen_stages for places in _offloads(stage)]
    return checked([_cell(work, cluster, *way) for way in ways], cluster)


def _torch_ways(cluster: Cluster) -> Iterator[tuple[str, Offload, Offload]]:
    """A strategy that divides nothing, FSDP, and FSDP with all states in host memory."""
    yield "single" if cluster.num_gpus == 1 else "ddp", Offload.NONE, Offload.NONE
    if cluster.num_gpus > 1:
        yield "fsdp", Offload.NONE, Offload.NONE
    yield "fsdp", Offload.CPU, Offload.CPU


def _offloads(stage: int) -> Iterator[tuple[Offload, Offload]]:
    optimizer, param = _PLACES[stage]
    yield from ((states, parameters) for states in optimizer for parameters in param)


def offloaded(trial: TrialSpec) -> Iterator[TrialSpec]:
    """Vary `trial` by each offload to host memory that its stage supports; none with a DeepSpeed file, which sets its
    own.
    """
    if trial.zero_stage is None or trial.ds_config_file is not None or trial.offloaded_to:
        return
    for states, parameters in _offloads(trial.zero_stage):
        if Offload.CPU in {states, parameters} and Offload.NVME not in {states, parameters}:
            places = {"offload_optimizer": states, "offload_param": parameters}
            is_usual = trial.optimizer is deepspeeds_adamw(offloaded=False)
            kernel = deepspeeds_adamw(offloaded=states is not Offload.NONE) if is_usual else trial.optimizer
            yield trial.model_copy(update=places | {"optimizer": kernel})


def _cell(work: Mapping[str, Any], cluster: Cluster, strategy: str, optimizer: Offload, param: Offload) -> TrialSpec:
    adamw = deepspeeds_adamw(offloaded=optimizer is not Offload.NONE)
    if not strategy_info(strategy).uses_deepspeed:
        adamw = plain_optimizer(adamw).name
    axes = {"precision": usual_precision(cluster), "strategy": strategy, "optimizer": adamw}
    return trial_on(cluster, axes | {"offload_optimizer": optimizer, "offload_param": param} | dict(work))


def trial_on(cluster: Cluster, axes: Mapping[str, Any]) -> TrialSpec:
    """Trial of `axes` simulated on the cluster; attention as the model supports it, unless they set it."""
    swaps = Offload.NVME in {axes["offload_optimizer"], axes["offload_param"]}
    attention = Attention.SDPA if takes_attention(axes["model"], Attention.SDPA) else Attention.EAGER
    trial = TrialSpec(
        **{"attention": attention, **axes},
        nvme_path=NOWHERE if swaps and cluster.nvme_bytes_per_s else None,
        num_nodes=cluster.num_nodes,
        gpus_per_node=cluster.gpus_per_node,
        steps=STEPS,
    )
    return predicted(trial, cluster)


def predicted(trial: TrialSpec, cluster: Cluster) -> TrialSpec:
    """Simulate `trial` on the cluster's GPU."""
    fields = {"gpu": cluster.gpu.name, "host_memory_bytes": cluster.host_memory_bytes}
    prediction = PredictionSpec(rank=trial.prediction.rank, **fields)
    return trial.model_copy(update={"evidence": Evidence.SIMULATED, "prediction": prediction})


def replace_evidence(planned: Sequence[PlannedTrial], world: Evidence) -> list[PlannedTrial]:
    """Copies of `planned` with another evidence."""
    return [item.changed(evidence=world) for item in planned]


def replace_blocks(planned: Sequence[PlannedTrial], blocks: Blocks) -> list[PlannedTrial]:
    """Copies of `planned` whose times are expected of these blocks."""
    return [item.predicted_with(blocks=blocks) for item in planned]


def checked(trials: Sequence[TrialSpec], cluster: Cluster) -> list[PlannedTrial]:
    """Add to `trials` the rule that each violates. Raises UserError if none is left, with the first one's reason."""
    planned = [PlannedTrial(trial=trial, skipped=_skip(trial, cluster)) for trial in trials]
    if planned and all(item.skipped for item in planned):
        reasons = [item.skipped.reason for item in planned if item.skipped]
        raise UserError(f"plan: {reasons[0]}")
    return planned


def _skip(trial: TrialSpec, cluster: Cluster) -> Skip | None:
    swaps = Offload.NVME in trial.offloaded_to
    if swaps and trial.zero_stage == 3 and trial.nvme_path is None:
        return Skip(rule="nvme_needs_path", reason="no NVMe drive; add one with --nvme 7GB/s (its read rate)")
    return find_skip(Situation(trial, cluster.machine, None))


def document(name: str, planned: Sequence[PlannedTrial]) -> dict[str, Any]:
    """The plan in the form of a sweep file, which is stored with its run: one `include` entry per trial.

    Points are written out, since the optimizer follows the offload and lists would multiply them. All take the same
    steps.
    """
    entries = [_entry(item.trial) for item in planned]
    return {"name": name, "axes": entries[0], "include": entries[1:], "steps": planned[0].trial.steps.model_dump()}


def extended_document(asked: Mapping[str, Any], more: Sequence[PlannedTrial]) -> dict[str, Any]:
    """Add an `include` entry to the sweep `asked` for each trial that was added to its run."""
    return {**asked, "include": [*asked.get("include", []), *(_entry(item.trial) for item in more)]}


def _entry(trial: TrialSpec) -> dict[str, Any]:
    fields = trial.model_dump(mode="json") | trial.prediction.model_dump(mode="json")
    return {axis: fields[axis] for axis in READERS if axis in fields}
