"""The record of a trial of evidence `formula`: the same rows that a measured rank leaves, and no process behind them.

Model states and buffers are those of DeepSpeed (zerobench.estimate.memory.deepspeed) and torch (torch_strategies), not
the paper's: the paper's terms stand beside every trial's states in the report anyway. So are collectives, and the bytes
that are swapped; FLOPs are those that the passes run, what is computed again among them.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Category, Phase, Place, Status, StepKind
from zerobench.config.deepspeed import build_ds_config
from zerobench.config.deepspeed.case import RATIO, Case
from zerobench.config.deepspeed.reading import get, optimizer_of
from zerobench.config.derived.batch import micro_batches_of_share
from zerobench.config.derived.flops import model_flops_per_token
from zerobench.config.derived.host_memory import element_bytes
from zerobench.config.derived.megatron import tensor_moves
from zerobench.config.derived.pipeline import is_last_stage, own_blocks, pipeline_refusal
from zerobench.config.derived.sharding import nodes_of_neighbours, state_shard_size
from zerobench.config.derived.strategy import STRATEGIES, strategy_info
from zerobench.config.derived.tensor_parallel import tensor_parallel_refusal
from zerobench.config.hardware.hardware import find_gpu
from zerobench.config.hardware.overheads import overhead_of, workspace_of
from zerobench.config.models.parameters import ParameterCounts, count_parameters
from zerobench.config.models.tensors import (
    adapter_tensors,
    block_tensors,
    blocks_are_linear,
    frozen_tensors,
    matrices,
    named_weights,
    parameter_tensors,
    quantised_elements,
    stage_tensors,
)
from zerobench.config.rules.weight_rules import formula_refusal, frozen_words
from zerobench.config.trial.adapter import base_of, codes_bytes, lora_of
from zerobench.config.trial.backward import Weight, uses
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.optimizers import OPTIMIZERS, plain_optimizer
from zerobench.config.trial.trial import Evidence, Offload, TrialSpec
from zerobench.estimate.memory.allocator import allocator_rows
from zerobench.estimate.memory.backward_memory import backward_memory_of, in_blocks
from zerobench.estimate.memory.deepspeed import Instants, Setting, deepspeed_instants
from zerobench.estimate.memory.deepspeed.departures import departures
from zerobench.estimate.memory.deepspeed.gathers import gathers
from zerobench.estimate.memory.deepspeed.setting import NOTHING
from zerobench.estimate.memory.deepspeed.stage_0 import plain_device
from zerobench.estimate.memory.deepspeed.stage_3_offload import swapped_numbers
from zerobench.estimate.memory.deepspeed.swapped import swapped
from zerobench.estimate.memory.megatron import Parts, cut_logits_bytes, own_tensors, tensor_device
from zerobench.estimate.memory.pipeline import (
    passes_with_gradients,
    shared_elements,
    stage_activations,
    stage_device,
    stage_logits,
    stage_moves,
)
from zerobench.estimate.memory.terms.activations import (
    Activations,
    activations,
    knows_frozen,
    trial_logits,
    trial_shape,
)
from zerobench.estimate.memory.terms.module_order import ModuleOrder, module_order
from zerobench.estimate.memory.terms.passes import frozen_backward, pass_flops
from zerobench.estimate.memory.terms.terms import Bytes, Terms, add, hold
from zerobench.estimate.memory.timeline import device_phases, memory_rows, other_phases
from zerobench.estimate.memory.torch_strategies import (
    CollectiveVolume,
    Shards,
    bucket_count,
    ddp_device,
    ddp_moves,
    drawing,
    fsdp,
    fsdp_moves,
    replicas_move,
)
from zerobench.estimate.memory.zero_moves import zero_moves
from zerobench.records.records import (
    CollectiveTraffic,
    ContextMemory,
    DeviceMemory,
    MemoryRow,
    ParameterTensor,
    RankRecord,
)

DEVICE_TYPE = "formula"


def formula_record(trial: TrialSpec, *, plays_allocator: bool = True) -> RankRecord:
    """The record of rank `trial.prediction.rank` by formula: memory, collectives, parameters, FLOPs, and no times.

    `plays_allocator`: with what the allocator holds beyond tensors, which takes as long as all the rest and longer.

    Raises UserError for a model without a closed form, a rank that is not there, a strategy that no formula is known
    for, and a configuration that DeepSpeed would refuse.
    """
    rank = _rank(trial)
    tensors = _tensors(trial)
    counts = _counts(trial)
    config = _config(trial)
    setting = _setting(trial, config, tensors, tied_head=_has_tied_head(trial, counts))
    trained = setting.num_params if setting.frozen else counts.total
    if trial.adapter is not None:
        counts = replace(counts, other=counts.other + setting.num_params)
    flops, formula = model_flops_per_token(trial.model, trial.sequence_length, counts, frozen_backward(trial))
    tokens = trial.micro_batch_size * trial.gradient_accumulation_steps * trial.sequence_length
    allocated = _allocated(trial, setting) if plays_allocator else []
    return RankRecord(
        trial_id=trial.trial_id,
        rank=rank,
        local_rank=rank % trial.gpus_per_node,
        world_size=trial.world_size,
        hostname=platform.node(),
        pid=os.getpid(),
        status=Status.COMPLETED,
        device_type=DEVICE_TYPE,
        device_name=trial.prediction.gpu or DEVICE_TYPE,
        parameters=ParameterTensor(total=counts.total, trainable=trained, by_component=counts.component_counts()),
        micro_batch_size=trial.micro_batch_size,
        flops_per_step=None if flops is None else flops * tokens,
        flops_formula=formula,
        memory=[row for step in StepKind for row in _memory(trial, setting, step)],
        device_memory=allocated,
        collectives=[row for step in StepKind for row in _collectives(trial, setting, step)],
        flops=pass_flops(trial, replaces_linear=setting.case.replaces_linear),
        nvme=swapped(setting) if trial.zero_stage == 3 else [],
        context=_context(trial),
        departures=departures(config, trial.world_size, counts.total, trial.optimizer, trained) if config else [],
        notes=_notes(trial, allocator_is_played=bool(allocated)),
    )


def formula_setting(trial: TrialSpec) -> Setting:
    """Return the arguments of the formulas of states and buffers, for rank `trial.prediction.rank`.

    Raises UserError where `formula_record` does.
    """
    return _setting(trial, _config(trial), _tensors(trial), tied_head=_has_tied_head(trial, _counts(trial)))


def _has_tied_head(trial: TrialSpec, counts: ParameterCounts) -> bool:
    """Return whether the rank's head is its embedding: of a pipeline the last stage alone has a head."""
    return counts.head == 0 and (is_last_stage(trial) or not strategy_info(trial.strategy).divides_layers)


def _tensors(trial: TrialSpec) -> tuple[int, ...]:
    """The parameter tensors that are trained and that this rank holds or holds shares of: where ranks divide the model,
    its parts.
    """
    if (unknown := formula_refusal(trial)) is not None:
        raise UserError(f"{frozen_words(trial)}: {unknown}")
    if not trial.trains_all and not knows_frozen(trial):
        raise UserError(
            f"{frozen_words(trial)}: no formula for what {trial.model.model_type} keeps beside frozen weights with "
            f"activation_checkpointing {trial.activation_checkpointing}; use simulated or emulated"
        )
    if trial.adapter is not None:
        return adapter_tensors(trial.model, lora_of(trial.adapter))
    if trial.frozen is not None:
        return tuple(weight.size for weight in named_weights(trial.model, trial.frozen).all if weight.is_trained)
    why = tensor_parallel_refusal(trial, trial.world_size) if trial.strategy == "tensor" else None
    if why is not None:
        raise UserError(f"strategy: tensor: {why}")
    if strategy_info(trial.strategy).divides_layers:
        return _stage_tensors(trial)
    return own_tensors(trial.model, _part(trial)) if trial.strategy == "tensor" else parameter_tensors(trial.model)


def _stage_tensors(trial: TrialSpec) -> tuple[int, ...]:
    _is_plain(trial)  # which of them has a formula
    if (why := pipeline_refusal(trial, trial.world_size)) is not None:
        raise UserError(f"strategy: {trial.strategy}: {why}")
    return stage_tensors(trial.model, own_blocks(trial))


def _part(trial: TrialSpec) -> Parts:
    return Parts(trial.world_size, trial.prediction.rank, trial_shape(trial).vocab_size)


def _rank(trial: TrialSpec) -> int:
    rank = trial.prediction.rank
    if rank >= trial.world_size:
        raise UserError(f"rank: {rank} of {trial.world_size}; choices: 0 to {trial.world_size - 1}")
    return rank


def _counts(trial: TrialSpec) -> ParameterCounts:
    counts = count_parameters(trial.model)
    if counts is None:
        raise UserError(f"model: {trial.model.name!r} ({trial.model.model_type}) has no closed form of its parameters")
    return counts


def _is_plain(trial: TrialSpec) -> bool:
    """Return whether the trial runs without DeepSpeed. Raises UserError for strategies that no formula is known for."""
    info = strategy_info(trial.strategy)
    if Evidence.FORMULA not in info.evidences:
        known = ", ".join(name for name, strategy in STRATEGIES.items() if Evidence.FORMULA in strategy.evidences)
        raise UserError(f"strategy: {trial.strategy!r} has no formula; choices: {known}")
    return not info.uses_deepspeed


def _config(trial: TrialSpec) -> dict[str, Any]:
    """The DeepSpeed configuration; empty without DeepSpeed. A formula writes nothing, so any NVMe path serves."""
    if _is_plain(trial):
        return {}
    config = build_ds_config(trial.model_copy(update={"nvme_path": trial.nvme_path or "/nvme"}))
    ratio = get(config, f"zero_optimization.{RATIO}")
    if ratio != 1 and trial.offload_optimizer is Offload.NVME:
        raise UserError(
            f"ds_config: zero_optimization.{RATIO}: {ratio} has no formula beside NVMe; choices: 1, or evidence "
            f"{Evidence.SIMULATED}"
        )
    return config


def _setting(trial: TrialSpec, config: dict[str, Any], tensors: tuple[int, ...], *, tied_head: bool) -> Setting:
    is_made = config and OPTIMIZERS[trial.optimizer].deepspeed is not None
    optimizer = optimizer_of(config) if is_made else trial.optimizer
    if not config:
        config = {
            str(trial.precision): {"enabled": True},
            "zero_optimization": {"stage": 0},
            "gradient_accumulation_steps": _accumulated(trial),
        }
        optimizer = plain_optimizer(optimizer).name
    gpu = None if trial.prediction.gpu is None else find_gpu(trial.prediction.gpu)
    case = Case(config, state_shard_size(trial), sum(tensors))
    holds = case.stage == 3 and not case.replaces_linear and not trial.activation_checkpointing
    base, scales_bytes = base_of(trial.adapter), 0
    partly: dict[str, Any] = {}
    if trial.adapter is not None:
        frozen, scales_bytes = frozen_tensors(trial.model, base, case.element)
        whole = (*frozen[:1], *tensors, *frozen[1:])
        partly = {"frozen": frozen, "whole": whole, "trains_head": False, "trains_first": False}
    elif trial.frozen is not None:
        partly = _partly_frozen(trial, tied_head=tied_head)
    held = _linear_elements(trial) if holds else 0
    coded = 0 if base is None else codes_bytes(base, quantised_elements(trial.model, base)) // case.element
    if coded and case.stage == 3:
        held = coded + partly["frozen"][0 if tied_head else -1]
    setting = Setting(
        case=case,
        tensors=tensors,
        optimizer=optimizer,
        rank=trial.prediction.rank,
        on_gpu=trial.prediction.gpu is not None,
        zero_init=trial.partitions_as_built,
        tied_head=tied_head,
        capacity_bytes=None if gpu is None else gpu.capacity_bytes,
        linear_elements=held,
        loss_in_head=trial.cross_entropy.is_chunked,
        block_again=sum(block_tensors(trial.model)[0]) if case.stage == 3 and trial.activation_checkpointing else 0,
        coded=coded,
        scales_bytes=scales_bytes,
        trains_wide=trial.widens_adapters,
        used=_used(_Named(trial.model.model_dump_json(), trial.frozen, trial.model))
        if case.stage and trial.adapter is None
        else (),  # adapters are used in the order in which they are held
        **partly,
    )
    if case.stage < 3:
        return setting
    order = _module_order(_Modules(trial.model_dump_json(exclude=_OF_NO_ORDER), setting.frozen, tensors, trial))
    return replace(setting, gathers=gathers(order, case, swapped_numbers(setting, order.sizes)))


@dataclass(frozen=True)
class _Named:
    key: str
    frozen: str | None
    model: ModelSpec = field(compare=False)


@lru_cache(maxsize=64)
def _used(asked: _Named) -> tuple[int, ...]:
    """The numbers of a model's trained tensors in the order of use: the same for all that a search varies."""
    weights = [weight for weight in named_weights(asked.model, asked.frozen).all if weight.is_trained]
    numbers = {weight.name: number for number, weight in enumerate(weights)}
    tables = [numbers[weight.name] for weight in weights if weight.component.is_looked_up]
    others = (numbers[use.weight.name] for use in uses(weights) if not use.weight.component.is_looked_up)
    return (*tables, *others)


_OF_NO_ORDER = {"ds_config", "ds_config_file", "micro_batch_size", "gradient_accumulation_steps", "repeat"}
"""Fields of a trial on which the order of its modules surely does not depend, and which a search varies."""


@dataclass(frozen=True)
class _Modules:
    key: str
    frozen: tuple[int, ...]
    trained: tuple[int, ...]
    trial: TrialSpec = field(compare=False)


@lru_cache(maxsize=64)
def _module_order(asked: _Modules) -> ModuleOrder:
    return module_order(asked.trial, asked.frozen, asked.trained)


def _accumulated(trial: TrialSpec) -> int:
    """Micro-batches that follow one another, so that all but the first find the gradients of others there."""
    is_pipeline = strategy_info(trial.strategy).divides_layers
    return passes_with_gradients(trial) if is_pipeline else micro_batches_of_share(trial)


def _partly_frozen(trial: TrialSpec, *, tied_head: bool) -> dict[str, Any]:
    """Return the fields of the setting that a pattern of frozen weights changes."""
    weights = named_weights(trial.model, trial.frozen).all
    return {
        "frozen": tuple(weight.size for weight in weights if not weight.is_trained),
        "whole": tuple(weight.size for weight in weights),
        "trains_head": weights[0 if tied_head else -1].is_trained,
        "trains_first": weights[0].is_trained,
    }


def _linear_elements(trial: TrialSpec) -> int:
    """Elements of the matrices of nn.Linear, the head's among them; none in GPT-2's blocks, which are Conv1D."""
    if not blocks_are_linear(trial.model):
        return 0
    block, num_blocks, outside = matrices(trial.model)
    return num_blocks * sum(block) + outside


def _context(trial: TrialSpec) -> ContextMemory | None:
    """Memory outside torch as measured of the GPU, or by a calibration file: as in a simulation.

    Below stage 3 DeepSpeed's engine has a communicator of its own (groups.py, `_clone_world_group`) beside the one in
    which ranks meet; a single process has none.
    """
    if trial.prediction.gpu is None:
        return None
    overhead = overhead_of(trial.prediction.gpu, trial.world_size)
    alone = strategy_info(trial.strategy).is_reference
    communicators = 0 if alone else 2 if trial.zero_stage in {0, 1, 2} else 1
    nbytes = overhead.communicator_bytes(communicators)
    return ContextMemory(before_bytes=0, context_bytes=overhead.context_bytes, collectives_bytes=nbytes)


def _allocated(trial: TrialSpec, setting: Setting) -> list[DeviceMemory]:
    """Return the memory of the allocator on a GPU."""
    context = _context(trial)
    if context is None:
        return []
    outside = (context.context_bytes or 0) + (context.collectives_bytes or 0)
    instants = {step: trial_instants(trial, setting, step)[Place.DEVICE] for step in StepKind}
    return allocator_rows(trial, setting, instants, outside)


def trial_instants(trial: TrialSpec, setting: Setting, step: StepKind) -> dict[Place, Instants]:
    """Return the memory in each place on the rank of `setting`, without a pass's own work."""
    return beside_frozen(trial, setting, _trained_instants(trial, setting, step))


def beside_frozen(trial: TrialSpec, setting: Setting, instants: Mapping[Place, Instants]) -> dict[Place, Instants]:
    """`instants`, which are of what is trained, with what is frozen."""
    divided = trial.strategy == "fsdp" or setting.case.stage == 3
    place = Place.DEVICE if not divided or trial.offload_param is Offload.NONE else Place.HOST
    frozen = setting.frozen_parameters(setting.case.world_size if divided else 1)
    if not frozen:
        return dict(instants)
    beside = instants[place].beside(frozen)
    if not divided:
        beside = replace(beside, init=(_drawn(setting, frozen), *beside.init))
    return {**instants, place: beside}


def _drawn(setting: Setting, frozen: Terms) -> Terms:
    """The model while its largest tensor is drawn: more than the engine takes later for the few that it trains."""
    trained = setting.share(Category.PARAMETERS, setting.trained_element, setting.num_params)
    return add(frozen, trained, drawing(0, max(setting.model)))


def _trained_instants(trial: TrialSpec, setting: Setting, step: StepKind) -> Mapping[Place, Instants]:
    nowhere = {Place.HOST: NOTHING, Place.NVME: NOTHING}
    if trial.strategy == "ddp":
        return nowhere | {Place.DEVICE: ddp_device(setting, step)}
    if trial.strategy == "tensor":
        return nowhere | {Place.DEVICE: tensor_device(setting, step, max(parameter_tensors(trial.model)))}
    if trial.strategy == "pipeline":
        return nowhere | {Place.DEVICE: stage_device(trial, setting, step)}
    if trial.strategy == "fsdp":
        offloads = trial.offload_param is Offload.CPU
        has_copies = setting.case.world_size < trial.world_size
        device, host = fsdp(setting, step, fsdp_shards(trial), offloads=offloads, has_copies=has_copies)
        return nowhere | {Place.DEVICE: device, Place.HOST: host}
    if _is_plain(trial):
        return nowhere | {Place.DEVICE: plain_device(setting, step)}
    return deepspeed_instants(setting, step)


def fsdp_shards(trial: TrialSpec) -> Shards:
    """Return the groups into which FSDP2 cuts the trial's model: blocks, and one group of all that lies outside of
    them.
    """
    layer, num_blocks = block_tensors(trial.model)
    root, block = sum(parameter_tensors(trial.model)) - num_blocks * sum(layer), sum(layer)
    if trial.adapter is None:
        return Shards(root, block, num_blocks, trial.reshard_after_forward, *_trained_parts(trial))
    stored = frozen_tensors(trial.model, base_of(trial.adapter), element_bytes(trial))[0]
    codes, weights = quantised_elements(trial.model, base_of(trial.adapter)), sum(parameter_tensors(trial.model))
    block -= (weights - sum(stored)) // num_blocks if codes else 0
    added = sum(adapter_tensors(trial.model, lora_of(trial.adapter)))
    beside, in_block = added % num_blocks, added // num_blocks
    times = 2 if trial.widens_adapters else 1
    return Shards(
        root + times * beside,
        block + times * in_block,
        num_blocks,
        trial.reshard_after_forward,
        beside,
        in_block,
        num_blocks,
        num_blocks,
        trial.widens_adapters,
    )


def _trained_parts(trial: TrialSpec) -> tuple[int, int, int, int]:
    """Trained elements outside of the blocks and of a block; how many blocks have any, and how many are gathered again
    for backward: those that it comes to, and the one before, which is fetched ahead.
    """
    weights = named_weights(trial.model, trial.frozen)
    blocks = [trained for block in weights.blocks if (trained := _trained_elements(block))]
    root = _trained_elements((*weights.before, *weights.after))
    first = 0 if trial.passes_all else weights.first_passed
    return root, sum(blocks) // max(1, len(blocks)), len(blocks), len(weights.blocks) - max(0, first - 1)


def _trained_elements(weights: Iterable[Weight]) -> int:
    return sum(weight.size for weight in weights if weight.is_trained)


def _memory(trial: TrialSpec, setting: Setting, step: StepKind) -> list[MemoryRow]:
    shape = trial_shape(trial)
    if trial.strategy == "tensor":
        logits = cut_logits_bytes(shape.tokens, _part(trial).vocabulary, shape.element)
        kept = activations(trial, _part(trial).shape(shape))
    elif trial.strategy == "pipeline":
        logits, kept = stage_logits(trial), stage_activations(trial)
    else:
        logits, kept = trial_logits(trial), activations(trial)
    places = trial_instants(trial, setting, step)
    memory = None if trial.strategy in _DIVIDED else backward_memory_of(trial, setting.head * setting.tied_head)
    left = partial(_left, trial, setting, kept) if memory is None else memory.at
    in_block = None if memory is None else in_blocks(trial, setting, places[Place.DEVICE], memory)
    device = device_phases(places[Place.DEVICE], kept, logits, input_tokens(trial), left, in_block)
    if trial.prediction.gpu is not None:
        before = (0, 1) if trial.cross_entropy.is_chunked else (0,)
        device = _beside_workspaces(workspace_of(trial.prediction.gpu).workspace_bytes, setting, step, device, before)
    rows = memory_rows(step, Place.DEVICE, device)
    for place in (Place.HOST, Place.NVME):
        rows += memory_rows(step, place, other_phases(places[place]))
    return rows


_DIVIDED = frozenset({"tensor", "pipeline"})
"""Strategies whose ranks have parts of a pass."""


def _left(trial: TrialSpec, setting: Setting, kept: Activations, passed: int) -> Bytes:
    """Activations of the blocks that backward has not passed when there are gradients of so many elements; none where
    some are frozen, of which that is not known.
    """
    if setting.frozen:
        return {}
    block, num_blocks = block_tensors(trial.model)
    before = sum(weight.size for weight in named_weights(trial.model).before)
    blocks = min(max(setting.num_params - passed - before, 0) / sum(block), num_blocks)
    return {Category.ACTIVATIONS: kept.left_bytes(blocks)}


def _beside_workspaces(
    each: int,
    setting: Setting,
    step: StepKind,
    phases: Mapping[Phase, Sequence[Bytes]],
    before_products: Sequence[int],
) -> dict[Phase, list[Bytes]]:
    """With what the matrix library takes on a GPU in the first forward and the first backward pass, and keeps.
    `before_products`: numbers of the instants of backward that nothing has been multiplied for.
    """
    is_first = step is StepKind.FIRST and setting.case.micro_steps == 1

    def taken(phase: Phase, number: int) -> int:
        if phase is Phase.INIT:
            return 0
        has_one = phase is Phase.FORWARD or (phase is Phase.BACKWARD and number in before_products)
        return 1 if is_first and has_one else 2

    return {
        phase: [
            add(instant, hold(Category.WORKSPACES, each * taken(phase, number), ""))
            for number, instant in enumerate(instants)
        ]
        for phase, instants in phases.items()
    }


def input_tokens(trial: TrialSpec) -> int:
    """Return the tokens of all micro batches of a step on one rank."""
    return trial.micro_batch_size * trial.sequence_length * micro_batches_of_share(trial)


def _collectives(trial: TrialSpec, setting: Setting, step: StepKind) -> list[CollectiveTraffic]:
    """As torch and DeepSpeed have them in their sources; none for a rank alone."""
    if trial.world_size == 1 or strategy_info(trial.strategy).is_reference:
        return []
    if trial.zero_stage is not None:
        return _zero_collectives(trial, setting, step)
    if trial.strategy == "ddp":
        buckets = 1 if step is StepKind.FIRST else bucket_count(setting, trial.bucket_bytes)
        moves = ddp_moves(setting.num_params, buckets)
    elif trial.strategy == "tensor":
        moves = tuple(CollectiveVolume(*move) for move in tensor_moves(trial))
    elif trial.strategy == "pipeline":
        return _pipeline_collectives(trial, setting, step)
    else:
        return _fsdp_collectives(trial, setting, step)
    return [_traffic(trial, step, move, setting.trained_element, trial.world_size) for move in moves]


def _traffic(
    trial: TrialSpec, step: StepKind, move: CollectiveVolume, element: int, group_size: int
) -> CollectiveTraffic:
    """Return the traffic among so many neighbours."""
    return CollectiveTraffic(
        step=step,
        phase=move.phase,
        kind=move.kind,
        group_size=group_size,
        num_nodes=nodes_of_neighbours(trial, group_size),
        calls=move.calls,
        message_bytes=element * move.elements,
    )


def _fsdp_collectives(trial: TrialSpec, setting: Setting, step: StepKind) -> list[CollectiveTraffic]:
    """FSDP2's in groups of all ranks or of `mics_shard_size`, and then the sum of their gradients over the groups."""
    element, size = setting.trained_element, state_shard_size(trial)
    moves = fsdp_moves(fsdp_shards(trial), trial.gradient_accumulation_steps)
    rows = [
        _traffic(trial, step, move, setting.case.element if move.kind == "all_gather" else element, size)
        for move in moves
    ]
    copies = trial.world_size // size
    if copies > 1:
        sums = replicas_move(fsdp_shards(trial), setting.sharded)
        nodes = len({rank // trial.gpus_per_node for rank in range(0, trial.world_size, size)})
        across = _traffic(trial, step, sums, element, copies)
        rows.append(across.model_copy(update={"num_nodes": nodes}))
    return rows


def _pipeline_collectives(trial: TrialSpec, setting: Setting, step: StepKind) -> list[CollectiveTraffic]:
    """Between neighbours, and at the update those of the ends of a tied tensor and of all for the norm of gradients."""
    element = setting.case.element
    rows = [
        _traffic(trial, step, move, element, trial.world_size).model_copy(update={"num_nodes": None})
        for move in stage_moves(trial)
    ]
    if shared := shared_elements(trial):
        rows.append(_traffic(trial, step, CollectiveVolume(Phase.STEP, "all_reduce", 1, shared), element, 2))
    if trial.hyperparameters.gradient_clipping:
        rows.append(_traffic(trial, step, CollectiveVolume(Phase.STEP, "all_reduce", 1, 1), 4, trial.world_size))
    return rows


def _zero_collectives(trial: TrialSpec, setting: Setting, step: StepKind) -> list[CollectiveTraffic]:
    return [
        _traffic(trial, step, moved, setting.case.element, size)
        for move in zero_moves(setting, trial.gradient_accumulation_steps)
        for size, moved in _by_group(trial, setting, step, move)
        if moved.calls
    ]


def _by_group(
    trial: TrialSpec, setting: Setting, step: StepKind, move: CollectiveVolume
) -> list[tuple[int, CollectiveVolume]]:
    """Sizes of groups, and what of a collective goes through each.

    With hpZ each parameter's first gather after an update is from all ranks (zerobench.config.derived.zeropp),
    and the update itself; in the very first step there is a second copy already, of the initial weights.
    """
    size, world, gathered = trial.hpz_partition_size, trial.world_size, setting.gathers
    if size is None or gathered is None or move.kind != "all_gather" or move.phase is Phase.STEP:
        return [(world, move)]
    first = move.phase is Phase.FORWARD and step is StepKind.STEADY
    calls, elements = (gathered.first_calls, gathered.first_elements) if first else (0, 0)
    rest = replace(move, calls=move.calls - calls, elements=move.elements - elements)
    return [(world, replace(move, calls=calls, elements=elements)), (size, rest)]


def _notes(trial: TrialSpec, *, allocator_is_played: bool) -> list[str]:
    whose, collectives = "a plain torch loop", "none"
    if trial.zero_stage is not None:
        whose, collectives = "DeepSpeed 0.19.8", "DeepSpeed's"
    elif not strategy_info(trial.strategy).is_reference:
        whose, collectives = "torch 2.13", "torch's"
    if trial.strategy == "pipeline":
        whose = "a plain torch loop over this rank's stage"
    if trial.strategy == "tensor":
        whose = "a plain torch loop over this rank's parts"
        collectives = "Megatron-LM's (arXiv 1909.08053, section 3), the embedding's and the loss's torch's"
    sources = (
        f"formula: model states and buffers as allocated by {whose}; activations: {activations(trial).source}; "
        f"collectives: {collectives}"
    )
    beyond = "" if allocator_is_played else "allocator rounding and slack, "
    return [sources, f"formula: not included: {beyond}other process memory"]
