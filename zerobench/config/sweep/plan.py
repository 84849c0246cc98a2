"""What `zerobench plan` tries: each ZeRO stage with each offload, for one model on one cluster, as ordinary trials.

Adapters in fp32 beside a 16-bit model are planned with torch's own strategies instead, since no ZeRO stage has them.

The trials are predictions of a GPU by its catalogue name, in the simulated world unless another is asked for. Points
that cannot be are listed as skipped with their reason, like those of a sweep. The optimizer goes where the states are:
FusedAdam where they lie on the device, CPUAdam where they are offloaded; everything else is DeepSpeed's default.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from zerobench.common.errors import UserError, unknown_choice
from zerobench.config.axes.axes import READERS, read_axis
from zerobench.config.derived.cluster import Cluster
from zerobench.config.derived.strategy import strategy_info
from zerobench.config.models.causal_models import takes_attention
from zerobench.config.rules.rules import Skip, why_skipped
from zerobench.config.rules.situation import Situation
from zerobench.config.sweep.expand import NOWHERE, PlannedTrial
from zerobench.config.trial.adapter import is_wide
from zerobench.config.trial.optimizers import deepspeeds_adamw, without_deepspeed
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
"""A predicted step is like the next: the first one and one more say all."""

STAGES = (0, 1, 2, 3)

_PLACES = {
    0: ((Offload.NONE,), (Offload.NONE,)),
    1: ((Offload.NONE, Offload.CPU), (Offload.NONE,)),
    2: ((Offload.NONE, Offload.CPU), (Offload.NONE,)),
    3: (tuple(Offload), tuple(Offload)),
}
"""By stage: where optimizer states and where parameters may be (DeepSpeed offloads nothing at stage 0, parameters at
stage 3 only, and swaps to NVMe at stage 3 only)."""


def read_work(options: Mapping[str, Any]) -> dict[str, Any]:
    """The axes of `options` (axis to what was written, None where it was not), each read as a sweep would.

    Raises UserError, one line that begins with the option.
    """
    work = {}
    for axis, raw in options.items():
        if raw is not None:
            try:
                [work[axis]] = read_axis(axis, raw, _WHERE)
            except UserError as error:
                raise UserError(_of_option(axis, str(error))) from None
    return work


_WHERE = "plan"
_OPTIONS = {
    "micro_batch_size": "micro-batch",
    "gradient_accumulation_steps": "gradient-accumulation",
    "adapter": "lora",
}
"""Options that are not called as their axes."""


def _of_option(axis: str, fault: str) -> str:
    """`fault`, which begins with the axis, as one of its option."""
    text = fault.removeprefix(f"{_WHERE}: {axis}: ")
    return f"--{_OPTIONS.get(axis, axis.replace('_', '-'))}: {text.replace('lora-', '') if axis == 'adapter' else text}"


def read_stages(text: str | None) -> tuple[int, ...] | None:
    """The stages of `--stage 2,3`; None for None. Raises UserError for one that is none."""
    if text is None:
        return None
    names = [part.strip() for part in text.split(",")]
    for name in names:
        if name not in map(str, STAGES):
            raise unknown_choice("--stage", name, map(str, STAGES))
    return tuple(dict.fromkeys(map(int, names)))


def usual_precision(cluster: Cluster) -> Precision:
    """bf16, or fp16 on a GPU that has none."""
    return Precision.BF16 if cluster.machine.supports_bf16 else Precision.FP16


def cells(work: Mapping[str, Any], cluster: Cluster, stages: Sequence[int] | None = None) -> list[PlannedTrial]:
    """A trial for each stage and offload, in the order of their reach; `work` maps axes to values (model and so on).
    Without `stages` all of them; of adapters that no stage has, each stage once, to say why, and torch's strategies.

    Raises UserError where none of them can be, with the reason of the first.
    """
    if stages is None and is_wide(work.get("adapter")):
        ways = [*((f"zero{stage}", Offload.NONE, Offload.NONE) for stage in STAGES), *_torch_ways(cluster)]
    else:
        asked = STAGES if stages is None else stages
        ways = [(f"zero{stage}", *places) for stage in asked for places in _offloads(stage)]
    return checked([_cell(work, cluster, *way) for way in ways], cluster)


def _torch_ways(cluster: Cluster) -> Iterator[tuple[str, Offload, Offload]]:
    """What divides nothing, FSDP, and FSDP with all states in host memory."""
    yield "single" if cluster.num_gpus == 1 else "ddp", Offload.NONE, Offload.NONE
    if cluster.num_gpus > 1:
        yield "fsdp", Offload.NONE, Offload.NONE
    yield "fsdp", Offload.CPU, Offload.CPU


def _offloads(stage: int) -> Iterator[tuple[Offload, Offload]]:
    optimizer, param = _PLACES[stage]
    yield from ((states, parameters) for states in optimizer for parameters in param)


def offloaded(trial: TrialSpec) -> Iterator[TrialSpec]:
    """`trial` with each offload to host memory that its stage has; none with a DeepSpeed file, which says its own."""
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
        adamw = without_deepspeed(adamw).name
    axes = {"precision": usual_precision(cluster), "strategy": strategy, "optimizer": adamw}
    return trial_on(cluster, axes | {"offload_optimizer": optimizer, "offload_param": param} | dict(work))


def trial_on(cluster: Cluster, axes: Mapping[str, Any]) -> TrialSpec:
    """The trial of `axes` simulated on the cluster; attention as its model has it, unless they say."""
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
    """`trial` simulated on the cluster's GPU."""
    fields = {"gpu": cluster.gpu.name, "host_memory_bytes": cluster.host_memory_bytes}
    prediction = PredictionSpec(rank=trial.prediction.rank, **fields)
    return trial.model_copy(update={"evidence": Evidence.SIMULATED, "prediction": prediction})


def in_world(planned: Sequence[PlannedTrial], world: Evidence) -> list[PlannedTrial]:
    """`planned` predicted in another world than the simulated one."""
    return [item.changed(evidence=world) for item in planned]


def with_blocks(planned: Sequence[PlannedTrial], blocks: Blocks) -> list[PlannedTrial]:
    """`planned` with the blocks that their times are expected of."""
    return [item.predicted_with(blocks=blocks) for item in planned]


def checked(trials: Sequence[TrialSpec], cluster: Cluster) -> list[PlannedTrial]:
    """`trials` with the rule that each breaks. Raises UserError where none is left, with the first's reason."""
    planned = [PlannedTrial(trial=trial, skipped=_skip(trial, cluster)) for trial in trials]
    if planned and all(item.skipped for item in planned):
        reasons = [item.skipped.reason for item in planned if item.skipped]
        raise UserError(f"plan: {reasons[0]}")
    return planned


def _skip(trial: TrialSpec, cluster: Cluster) -> Skip | None:
    swaps = Offload.NVME in trial.offloaded_to
    if swaps and trial.zero_stage == 3 and trial.nvme_path is None:
        return Skip(rule="nvme_needs_path", reason="no NVMe drive; add one with --nvme 7GB/s (its read rate)")
    return why_skipped(Situation(trial, cluster.machine, None))


def document(name: str, planned: Sequence[PlannedTrial]) -> dict[str, Any]:
    """The plan as a sweep file would say it, which is kept with its run: one `include` entry a trial.

    The points are written out, since the optimizer goes with the offload and lists would multiply them. All take the
    same steps.
    """
    entries = [_entry(item.trial) for item in planned]
    return {"name": name, "axes": entries[0], "include": entries[1:], "steps": planned[0].trial.steps.model_dump()}


def extended_document(asked: Mapping[str, Any], more: Sequence[PlannedTrial]) -> dict[str, Any]:
    """The sweep `asked` with an `include` entry for each trial that was added to its run."""
    return {**asked, "include": [*asked.get("include", []), *(_entry(item.trial) for item in more)]}


def _entry(trial: TrialSpec) -> dict[str, Any]:
    fields = trial.model_dump(mode="json") | trial.prediction.model_dump(mode="json")
    return {axis: fields[axis] for axis in READERS if axis in fields}
