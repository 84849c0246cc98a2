"""A run as it might lie on disk: eleven trials on a node of eight GPUs, their figures made by simple arithmetic.

Model states follow the ZeRO paper plus padding, the rest is round numbers, and every table has something to show: an
odd rank, a void throughput, losses that disagree, one trial each that ran out of memory, hung and was skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType
from typing import Any

from tests.tools.known import known
from tests.tools.rank_records import ledger_row
from zerobench.common.vocabulary import Category, Phase, Place, Status, StepKind
from zerobench.config.models.parameters import count_parameters
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.records.folder import RunFolder
from zerobench.records.records import (
    ContextMemory,
    DeviceMemory,
    Failure,
    MemoryRow,
    NvmeTraffic,
    NvmlDevice,
    NvmlSummary,
    ParameterTensor,
    PhaseMark,
    ProcessMemory,
    RankRecord,
    StepTime,
    TrialRecord,
)
from zerobench.records.store import Plan, PlanEntry
from zerobench.report.figures.paper import paper_terms

MIB, GIB = 2**20, 2**30
RUN_ID = "sample_20260102-030405"
HOSTNAME = "node-1"
GPU = "NVIDIA H100 80GB HBM3"
START_S = 1_767_322_800.0
PADDING_BYTES = 512
PHASES = {
    StepKind.FIRST: (Phase.INIT, Phase.FORWARD, Phase.BACKWARD, Phase.STEP),
    StepKind.STEADY: (Phase.FORWARD, Phase.BACKWARD, Phase.STEP),
}

Bytes = Mapping[Category, int]


@dataclass(frozen=True)
class SampleTrial:
    """A trial as zerobench.records.store would read it."""

    spec: TrialSpec
    record: TrialRecord
    ranks: Sequence[RankRecord]

    def with_ranks(self, **fields: Any) -> SampleTrial:
        """The same trial with these fields in each rank's record; a function is asked for the field of each."""
        return replace(self, ranks=[_with(rank, fields) for rank in self.ranks])

    def with_rank(self, index: int, **fields: Any) -> SampleTrial:
        """The same trial with these fields in the record of one rank."""
        return replace(self, ranks=[_with(rank, fields) if n == index else rank for n, rank in enumerate(self.ranks)])

    def with_record(self, **fields: Any) -> SampleTrial:
        """The same trial with these fields in its own record."""
        return replace(self, record=self.record.model_copy(update=fields))


def _with(rank: RankRecord, fields: Mapping[str, Any]) -> RankRecord:
    told = {name: field(rank) if isinstance(field, FunctionType) else field for name, field in fields.items()}
    return rank.model_copy(update=told)


def model(name: str = "gpt2-345m", layers: int = 24, width: int = 1024) -> ModelSpec:
    """A GPT-2 by its shape."""
    config = {"model_type": "gpt2", "n_layer": layers, "n_embd": width, "n_head": width // 64, "n_positions": 1024}
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return ModelSpec(name=name, hf_config={**config, **no_dropout, "vocab_size": 50257})


def spec(strategy: str, **fields: Any) -> TrialSpec:
    """A trial on eight GPUs, eight sequences a GPU, in bf16; `fields` change it."""
    defaults = {"model": model(), "gpus_per_node": 8, "micro_batch_size": 8, "nvme_path": None}
    return TrialSpec.model_validate({**defaults, **fields, "strategy": strategy})


def sample_trials() -> list[SampleTrial]:
    """Eleven trials of one sweep."""
    nvme = {"offload_optimizer": "nvme", "offload_param": "cpu", "nvme_path": "/nvme"}
    bucket = {"zero_optimization.reduce_bucket_size": 500_000_000}
    return [
        completed_trial(spec("single", gpus_per_node=1, gradient_accumulation_steps=8), step_s=1.52),
        completed_trial(spec("zero0"), step_s=0.231),
        completed_trial(spec("zero1"), step_s=0.218),
        completed_trial(spec("zero1", micro_batch_size=4, gradient_accumulation_steps=2), loss_error=0.31),
        completed_trial(spec("zero2"), step_s=0.222),
        completed_trial(spec("zero2", ds_config=bucket), step_s=0.341, alloc_retries=3),
        completed_trial(spec("zero3"), step_s=0.264),
        completed_trial(spec("zero3", offload_optimizer="cpu"), step_s=0.705),
        completed_trial(spec("zero3", **nvme), step_s=2.25),
        failed_trial(spec("zero0", micro_batch_size=64), _out_of_memory()),
        failed_trial(spec("zero3", activation_checkpointing=True), _timeout(), status=Status.TIMEOUT),
        skipped_trial(spec("zero2", offload_param="cpu"), "offload_param_needs_stage_3"),
    ]


def cpu_trials() -> list[SampleTrial]:
    """The five trials of a quickstart: a small model in fp32, two CPU ranks, no NVIDIA driver."""
    small = {"model": model("gpt2-tiny", layers=2, width=128), "precision": "fp32", "sequence_length": 128}
    single = spec("single", gpus_per_node=1, gradient_accumulation_steps=2, **small)
    return [
        on_cpu(completed_trial(asked, loss_noise=1e-7))
        for asked in [single, *(spec(f"zero{stage}", gpus_per_node=2, **small) for stage in range(4))]
    ]


def on_cpu(trial: SampleTrial) -> SampleTrial:
    """The same trial as CPU ranks leave it: no allocator, no driver, no peak FLOP/s."""
    cpu: dict[str, Any] = {"device_type": "cpu", "device_name": "cpu", "device_uuid": None, "backend": "gloo"}
    cpu |= {"device_memory": [], "context": None}
    missing = NvmlSummary(hostname=HOSTNAME, available=False, reason="libnvidia-ml.so.1 was not found")
    return trial.with_ranks(**cpu).with_record(nvml=[missing])


def trial_record(asked: TrialSpec, status: Status = Status.COMPLETED, **fields: Any) -> TrialRecord:
    """How a trial ended."""
    times = {"started_at_s": START_S, "ended_at_s": START_S + 95.5}
    ids = {"run_id": RUN_ID, "trial_id": asked.trial_id, "config_hash": asked.config_hash}
    ranks = {"ranks_expected": asked.world_size}
    return TrialRecord.model_validate({**times, **ids, **ranks, "status": status, **fields})


def completed_trial(
    asked: TrialSpec,
    *,
    step_s: float = 0.25,
    loss_error: float = 0.0,
    loss_noise: float = 1e-4,
    norm_factor: float = 1.0,
    alloc_retries: int = 0,
) -> SampleTrial:
    """A trial that ran to its end on GPUs that NVML watched.

    `loss_error` is a fault from the fifth step on, `loss_noise` the rounding of each further ZeRO stage; `norm_factor`
    is by how much its gradients are too large.
    """
    losses = [10.8 - 0.1 * step + loss_noise * (asked.zero_stage or 0) + loss_error * (step > 3) for step in range(9)]
    norms = [(3.0 - 0.1 * step) * norm_factor for step in range(9)]
    ranks = [rank_record(asked, rank, step_s, losses, alloc_retries, norms) for rank in range(asked.world_size)]
    record = trial_record(asked, ranks_reported=len(ranks), nvml=[nvml_summary(ranks)])
    return SampleTrial(asked, record, ranks)


def failed_trial(asked: TrialSpec, failure: Failure, status: Status = Status.OUT_OF_DEVICE_MEMORY) -> SampleTrial:
    """A trial whose ranks left no record."""
    return SampleTrial(asked, trial_record(asked, status, reason=failure.message, failure=failure), [])


def refused_trial(trial: SampleTrial, needed_bytes: int) -> SampleTrial:
    """An emulated trial that its GPU refused, whose figures are those of a play with room for everything."""
    failure = Failure(message="it needs more", bytes_asked=8 * GIB, bytes_free=GIB, bytes_needed=needed_bytes)
    asked = trial.spec.model_copy(update={"evidence": Evidence.EMULATED})
    told = {"trial_id": asked.trial_id, "status": Status.OUT_OF_DEVICE_MEMORY, "failure": failure}
    return replace(trial, spec=asked).with_record(**told, reason=failure.message).with_ranks(**told)


def skipped_trial(asked: TrialSpec, rule: str) -> SampleTrial:
    """A trial that was never started."""
    reason = "offload_param: DeepSpeed offloads parameters at stage 3 only"
    times = {"started_at_s": None, "ended_at_s": None}
    return SampleTrial(asked, trial_record(asked, Status.SKIPPED, reason=reason, rule=rule, **times), [])


def _out_of_memory() -> Failure:
    message = "the device ran out of memory"
    return Failure(
        phase=Phase.BACKWARD, step_index=0, rank=2, message=message, bytes_asked=12 * GIB, bytes_free=3 * GIB
    )


def _timeout() -> Failure:
    stacks = {"0": "all_gather", "1": "all_gather"}
    return Failure(message="no rank finished within 900 s", phase=Phase.FORWARD, step_index=1, stacks=stacks)


def rank_record(
    asked: TrialSpec,
    rank: int,
    step_s: float = 0.25,
    losses: Sequence[float] = (10.8, 10.7),
    alloc_retries: int = 0,
    grad_norms: Sequence[float] = (),
) -> RankRecord:
    """What rank `rank` of a completed trial measured; rank 3 is a little slower and larger."""
    memory = device_rows(asked, rank) + host_rows(asked)
    return RankRecord(
        trial_id=asked.trial_id,
        rank=rank,
        local_rank=rank,
        world_size=asked.world_size,
        hostname=HOSTNAME,
        pid=4000 + rank,
        status=Status.COMPLETED,
        device_type="cuda",
        device_name=GPU,
        device_uuid=gpu_uuid(rank),
        backend="nccl",
        parameters=_parameters(asked),
        micro_batch_size=asked.micro_batch_size,
        flops_per_step=2.9e9 * asked.micro_batch_size * asked.gradient_accumulation_steps * asked.sequence_length,
        flops_formula="6 N + 12 L H Q s per token",
        losses=list(losses),
        grad_norms=list(grad_norms),
        learning_rates=[3e-4] * len(losses),
        step_times=[_step_time(step_s, rank, index) for index in range(7)],
        marks=_marks(step_s),
        memory=memory,
        process_memory=[_process(kind, phase) for kind, phases in PHASES.items() for phase in phases],
        device_memory=_device_memory(memory, alloc_retries),
        nvme=_nvme(asked),
        context=ContextMemory(before_bytes=3 * MIB, context_bytes=514 * MIB, collectives_bytes=320 * MIB),
        effective_config=_effective_config(asked),
        departures=_departures(asked),
    )


def gpu_uuid(index: int) -> str:
    """The UUID of GPU `index` as NVML spells it."""
    return f"GPU-00000000-0000-0000-0000-00000000000{index}"


def _parameters(asked: TrialSpec) -> ParameterTensor:
    counts = known(count_parameters(asked.model))
    return ParameterTensor(total=counts.total, trainable=counts.total, by_component=counts.component_counts())


def _step_time(step_s: float, rank: int, index: int) -> StepTime:
    whole = step_s * (1 + 0.01 * (index % 3) + (0.05 if rank == 3 else 0.0))
    return StepTime(step_s=whole, forward_s=whole * 0.3, backward_s=whole * 0.6, optimizer_s=whole * 0.1)


def _marks(step_s: float) -> list[PhaseMark]:
    """Init for ten seconds, then nine steps: the first, two of warm-up, five timed ones, one tracked."""
    marks = [PhaseMark(step_index=-1, kind="first", phase=Phase.INIT, start_s=START_S, end_s=START_S + 10)]
    kinds = ["first", "warmup", "warmup", *["timed"] * 5, "memory"]
    for index, kind in enumerate(kinds):
        begin = START_S + 10.5 + index * step_s
        for phase, start, end in ((Phase.FORWARD, 0.0, 0.3), (Phase.BACKWARD, 0.3, 0.9), (Phase.STEP, 0.9, 1.0)):
            times = {"start_s": begin + start * step_s, "end_s": begin + end * step_s}
            marks.append(PhaseMark(step_index=index, kind=kind, phase=phase, **times))
    return marks


def device_rows(asked: TrialSpec, rank: int) -> list[MemoryRow]:
    """The device's ledger of one rank."""
    rows = []
    for kind, phases in PHASES.items():
        for phase in phases:
            live, peak = _device_live(asked, rank, kind, phase), _device_at_peak(asked, rank, kind, phase)
            rows += _rows(kind, phase, Place.DEVICE, live, peak)
    return rows


def _device_live(asked: TrialSpec, rank: int, kind: StepKind, phase: Phase) -> Bytes:
    live = {**_states_on_device(asked, kind, phase), **_buffers(asked), Category.UNATTRIBUTED: 1536}
    if phase is not Phase.BACKWARD:
        del live[Category.GRADIENTS]
    if phase is Phase.FORWARD:
        live |= _residual(asked, rank)
    return live


def _device_at_peak(asked: TrialSpec, rank: int, kind: StepKind, phase: Phase) -> Bytes:
    peak = {**_device_live(asked, rank, kind, phase), Category.TEMPORARIES: 90 * MIB}
    if phase is Phase.BACKWARD:
        states = _states_on_device(asked, kind, phase)
        peak |= {**_residual(asked, rank), Category.GRADIENTS: states[Category.GRADIENTS] // 8}
        peak[Category.LOGITS_AND_LOSS] *= 2
    return peak


def _states(asked: TrialSpec) -> dict[Category, int]:
    terms = known(paper_terms(asked, _parameters(asked).total))
    shared = int(terms.optimizer_bytes) // 3 + PADDING_BYTES
    return {
        Category.PARAMETERS: int(terms.parameters_bytes) + PADDING_BYTES,
        Category.GRADIENTS: int(terms.gradients_bytes) + PADDING_BYTES,
        Category.MASTER_WEIGHTS: shared,
        Category.FIRST_MOMENT: shared,
        Category.SECOND_MOMENT: shared,
    }


OPTIMIZER = (Category.MASTER_WEIGHTS, Category.FIRST_MOMENT, Category.SECOND_MOMENT)


def _states_on_device(asked: TrialSpec, kind: StepKind, phase: Phase) -> dict[Category, int]:
    states = _states(asked)
    gone = set(OPTIMIZER if asked.offload_optimizer != "none" else ())
    if asked.offload_param != "none":
        gone.add(Category.PARAMETERS)
    if kind is StepKind.FIRST and phase is not Phase.STEP:
        gone |= {Category.FIRST_MOMENT, Category.SECOND_MOMENT}
    return {category: size for category, size in states.items() if category not in gone}


def _buffers(asked: TrialSpec) -> dict[Category, int]:
    elements = asked.ds_config.get("zero_optimization.reduce_bucket_size", 1_000_000)
    gathered = {Category.GATHERED_PARAMETERS: 25 * MIB} if asked.zero_stage == 3 else {}
    return {Category.REDUCE_BUFFERS: 2 * elements if asked.zero_stage else 0, **gathered}


def _residual(asked: TrialSpec, rank: int) -> dict[Category, int]:
    tokens = asked.micro_batch_size * asked.sequence_length
    extra = 40 * MIB if rank == 3 else 0
    return {
        Category.ACTIVATIONS: tokens * 24 * 1024 * 34 + extra,
        Category.LOGITS_AND_LOSS: tokens * 50257 * 4,
        Category.INPUTS: tokens * 8,
        Category.ALLOCATOR_ROUNDING: 100 * 1024,
    }


def _rows(kind: StepKind, phase: Phase, place: Place, live: Bytes, peak: Bytes) -> list[MemoryRow]:
    """A row for each category, and the total of them."""
    figures = [(category, live.get(category, 0), peak.get(category, 0)) for category in dict.fromkeys([*live, *peak])]
    figures.append((Category.TOTAL, sum(live.values()), sum(peak.values())))
    return [ledger_row(kind, phase, place, category, at_peak, at_end) for category, at_end, at_peak in figures]


def host_rows(asked: TrialSpec) -> list[MemoryRow]:
    """The host's ledger of one rank, and what lies on NVMe."""
    states, held = _states(asked), {Category.REST_OF_PROCESS: 3 * GIB, Category.UNATTRIBUTED: 2048}
    swapped: dict[Category, int] = {}
    if asked.offload_optimizer == "cpu":
        held |= {category: states[category] for category in OPTIMIZER} | {Category.STAGING: 64 * MIB}
    if asked.offload_optimizer == "nvme":
        swapped = {Category.OPTIMIZER_STATES_ON_NVME: sum(states[category] for category in OPTIMIZER)}
        held[Category.PINNED_BUFFERS] = 640 * MIB
    if asked.offload_param == "cpu":
        held[Category.PARAMETERS] = states[Category.PARAMETERS]
    rows = [
        row for kind, phases in PHASES.items() for phase in phases for row in _rows(kind, phase, Place.HOST, held, held)
    ]
    if swapped:
        rows += [
            row
            for phase in PHASES[StepKind.STEADY]
            for row in _rows(StepKind.STEADY, phase, Place.NVME, swapped, swapped)
        ]
    return rows


def _process(kind: StepKind, phase: Phase) -> ProcessMemory:
    sizes = {"rss_bytes": 3 * GIB, "pss_bytes": 3 * GIB - 5 * MIB, "peak_rss_bytes": 3 * GIB + 7 * MIB}
    return ProcessMemory(step=kind, phase=phase, malloc_bytes=2 * GIB, pinned_bytes=0, **sizes)


def _device_memory(memory: Iterable[MemoryRow], alloc_retries: int) -> list[DeviceMemory]:
    """The allocator reserves a sixteenth more than the peak and gives nothing back."""
    totals = [row for row in memory if row.place is Place.DEVICE and row.category is Category.TOTAL]
    rows, reserved = [], 0
    for row in totals:
        peak = row.at_peak_bytes or 0
        reserved = max(reserved, peak + peak // 16)
        rows.append(
            DeviceMemory(
                step=row.step,
                phase=row.phase,
                allocated_bytes=row.live_bytes,
                peak_allocated_bytes=peak,
                reserved_bytes=reserved,
                peak_reserved_bytes=reserved,
                alloc_retries=alloc_retries if row.step is StepKind.STEADY else 0,
                nvml_used_bytes=reserved + 840 * MIB,
                nvml_process_bytes=reserved + 834 * MIB,
            )
        )
    return rows


def _nvme(asked: TrialSpec) -> list[NvmeTraffic]:
    if asked.offload_optimizer != "nvme":
        return []
    seconds = {Phase.FORWARD: 0.5, Phase.BACKWARD: 0.75, Phase.STEP: 1.0}
    moved = {Phase.FORWARD: 0, Phase.BACKWARD: 0, Phase.STEP: 500_000_000}
    return [
        NvmeTraffic(step=StepKind.STEADY, phase=p, read_bytes=moved[p], written_bytes=moved[p] // 2, seconds=seconds[p])
        for p in seconds
    ]


def _effective_config(asked: TrialSpec) -> dict[str, Any]:
    if asked.zero_stage is None:
        return {}
    bucket = asked.ds_config.get("zero_optimization.reduce_bucket_size", 1_000_000)
    return {
        "zero_optimization": {
            "stage": asked.zero_stage,
            "reduce_bucket_size": bucket,
            "allgather_bucket_size": 1_000_000,
            "prefetch_bucket_size": 0,
            "overlap_comm": False,
        }
    }


def _departures(asked: TrialSpec) -> list[str]:
    if asked.zero_stage != 1:
        return []
    return ["Stage 1 keeps whole gradients until the step, as the paper says, and a copy of its own share of them."]


def nvml_summary(ranks: Sequence[RankRecord]) -> NvmlSummary:
    """What the sampler said: rank 3's peak lies under what the allocator reserved there."""
    devices = []
    for rank in ranks:
        used = max(row.nvml_used_bytes or 0 for row in rank.device_memory)
        missed = 2 * GIB if rank.rank == 3 and rank.trial_id.startswith("gpt2-345m-zero0") else 0
        devices.append(
            NvmlDevice(
                gpu_uuid=gpu_uuid(rank.rank),
                name=GPU,
                index=rank.rank,
                total_bytes=80 * GIB,
                reserved_bytes=600 * MIB,
                baseline_used_bytes=3 * MIB,
                peak_used_bytes=used - missed,
                energy_joules=5000.0,
                mean_power_watts=410.0,
            )
        )
    gaps = {"interval_s": 0.01, "largest_gap_s": 0.0312, "num_samples": 9500}
    told = {"driver_version": "580.65.06", "memory_api": "v2"}
    return NvmlSummary(hostname=HOSTNAME, available=True, devices=devices, **told, **gaps)


def sample_lines(ranks: Sequence[RankRecord]) -> str:
    """A file of NVML samples: a reading of each GPU every 100 ms for 40 s at 400 W, and an energy counter."""
    lines = ["t_s,gpu_uuid,used_bytes,reserved_bytes,power_watts,energy_joules"]
    for tick in range(400):
        for rank in ranks:
            power = f"{400.0},{1000 + 40.0 * tick}" if tick % 2 == 0 else ","
            lines.append(f"{START_S + tick / 10:.6f},{gpu_uuid(rank.rank)},{tick * MIB},{600 * MIB},{power}")
    return "\n".join(lines) + "\n"


def write_run(path: Path, trials: Sequence[SampleTrial], *, samples: bool = True) -> RunFolder:
    """Lay the trials out in the folder `path` as a run would."""
    run = RunFolder(path)
    run.trials.mkdir(parents=True)
    run.sweep.write_text("name: sample\n")
    run.environment.write_text(json.dumps({"zerobench": "0.1.0"}))
    entries = [PlanEntry(trial_id=t.spec.trial_id, rule=t.record.rule, reason=t.record.reason) for t in trials]
    run.plan.write_text(Plan(run_id=RUN_ID, trials=entries).model_dump_json())
    for trial in trials:
        folder = run.trial(trial.spec.trial_id)
        folder.path.mkdir()
        folder.spec.write_text(trial.spec.model_dump_json())
        folder.record.write_text(trial.record.model_dump_json())
        for rank in trial.ranks:
            folder.rank_record(rank.rank).write_text(rank.model_dump_json())
        if samples and trial.ranks:
            folder.nvml_samples(HOSTNAME).write_text(sample_lines(trial.ranks))
    return run
