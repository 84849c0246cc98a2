"""Axes of the work that is trained, one row each; axes that set up one engine are in engine_axes.py.

A new axis is a field of TrialSpec, marked as Later, and a row here or there. If only some strategies have it, it is
also named in their `axes` (zerobench.config.derived.strategy).
"""

from zerobench.common.units import counted
from zerobench.config.axes import axis_readers as read
from zerobench.config.axes import axis_words as words
from zerobench.config.axes.axis import Axis, Column, Label, Visibility
from zerobench.config.axes.axis_words import column, number, same, simple_axis, unusual
from zerobench.config.trial.adapter import read_adapter, read_frozen
from zerobench.config.trial.optimizers import Optimizer
from zerobench.config.trial.recomputation import checkpointing_name, checkpointing_sentence, read_checkpointing
from zerobench.config.trial.trial import (
    Attention,
    Compile,
    Consistency,
    CrossEntropy,
    Offload,
    PipelineSchedule,
    TfStrategy,
    TrialSpec,
    Weights,
)


def _selective(spec: TrialSpec) -> str | None:
    checkpointing = spec.activation_checkpointing
    return checkpointing if isinstance(checkpointing, str) else None


WORK_AXES = (
    Axis(
        "model",
        read.model,
        "llama-1b",
        "preset, path of a config.json, hub id, or a mapping of sizes",
        (column("model", value=lambda spec: spec.model.name), Column("num_params", int)),
        same(lambda spec: spec.model.name),
        visibility=Visibility.BY_ENGINE,
    ),
    Axis(
        "strategy",
        read.strategy,
        "[single, ddp, zero0, zero1, zero2, zero3, fsdp, tensor]",
        "all, with requirements: `zerobench strategies`",
        (column("strategy"), column("zero_stage", int, None)),
        same(lambda spec: spec.strategy, always=True),
    ),
    Axis(
        "offload_optimizer",
        read.choice(Offload),
        "none",
        "none, cpu, nvme",
        (column("offload_optimizer", line=lambda value: f"opt={value}", silent="none"),),
        Label(
            words.offload_name,
            words.offload_sentence,
            "opt=, param=: where optimizer states and parameters are offloaded",
        ),
        visibility=Visibility.BY_ENGINE,
    ),
    Axis(
        "offload_param",
        read.choice(Offload),
        "none",
        "none, cpu, nvme",
        (column("offload_param", line=lambda value: f"param={value}", silent="none"),),
        said_by="offload_optimizer",
        visibility=Visibility.BY_ENGINE,
    ),
    Axis(
        "nvme_path",
        read.text,
        "null",
        "folder on the NVMe device; runs use subfolders",
        said_by="settings, and names of otherwise equal trials",
    ),
    Axis(
        "world_size",
        read.ranks,
        "auto",
        (
            "ranks; auto: all GPUs, or two CPU ranks. Or num_nodes and gpus_per_node, also auto; any one or "
            "two of the three determine the rest."
        ),
        (
            column("num_nodes", int, lambda value: counted(value, "node")),
            column("world_size", int, lambda value: f"n{value}"),
        ),
        Label(words.ranks_name, words.ranks_sentence, "n: ranks"),
        usual=read.AUTO,
        is_layout=True,
    ),
    Axis("num_nodes", read.ranks, said_by="world_size", is_layout=True),
    Axis("gpus_per_node", read.ranks, said_by="world_size", is_layout=True),
    Axis(
        "micro_batch_size",
        read.positive,
        "[1, 2]",
        "micro-batch size per GPU, in sequences",
        (column("micro_batch_size", int, lambda value: f"mb{value}"),),
        number("mb", "micro batch", lambda spec: spec.micro_batch_size),
        visibility=Visibility.BY_ENGINE,
    ),
    Axis(
        "gradient_accumulation_steps",
        read.positive,
        "1",
        "gradient accumulation steps",
        (
            column("gradient_accumulation_steps", int, lambda value: f"ga{value}"),
            Column("global_batch_size", int, line=lambda value: f"batch {value}", is_key=False),
        ),
        number("ga", "gradient accumulation", lambda spec: spec.gradient_accumulation_steps),
        visibility=Visibility.BY_ENGINE,
    ),
    Axis(
        "batch_ramp",
        read.batch_ramp,
        "none",
        (
            "or {start_tokens: 4096, over_tokens: 1e6}: the global batch grows in increments of "
            "start_tokens, or of increment_tokens. {over_batches: 4}: from one micro-batch per rank, over "
            "the tokens of four full batches"
        ),
        (column("batch_ramp", line=None),),
        unusual(
            "batch_ramp",
            lambda ramp: f"ramp={ramp}",
            lambda ramp: f"batch from {ramp.start_tokens} tokens on",
            "ramp=: tokens of the first batch + increment / tokens of training until it is full",
            always=True,
        ),
    ),
    Axis(
        "sequence_length",
        read.positive,
        "1024",
        "tokens per sequence",
        (column("sequence_length", int, lambda value: f"seq{value}"),),
        number("seq", "sequence length", lambda spec: spec.sequence_length),
        visibility=Visibility.BY_ENGINE,
    ),
    Axis(
        "precision",
        read.precision,
        "bf16",
        "fp32, bf16, fp16; auto: bf16; fp32 on CPUs with slow or unmeasured bf16; fp16 on GPUs without bf16",
        (column("precision"),),
        same(lambda spec: spec.precision.value),
        visibility=Visibility.BY_ENGINE,
    ),
    Axis(
        "optimizer",
        read.choice(Optimizer),
        "adamw",
        ", ".join(Optimizer),
        (column("optimizer"),),
        same(lambda spec: spec.optimizer.value),
        visibility=Visibility.BY_ENGINE,
    ),
    simple_axis(
        "adapter",
        read_adapter,
        "none",
        (
            "none, or lora-16: LoRA adapters of rank 16 on every matrix but the head; "
            "lora-16:q_proj+v_proj, or {lora: {rank: 16, targets: [q_proj, v_proj]}}: on these only; "
            "lora-16-nf4, lora-16-int8, or base: nf4: on matrices in 4 or 8 bits (QLoRA); "
            "lora-16-fp32, lora-16-fp32-nf4, or dtype: fp32: in fp32 beside a 16-bit model, as PEFT makes them"
        ),
        str,
        lambda value: f"{value} on a frozen model",
        "lora-: rank of the adapters",
        visibility=Visibility.NEVER,
    ),
    simple_axis(
        "frozen",
        read_frozen,
        "null",
        "regular expression: weights with matching names are frozen",
        lambda value: f"frozen={value}",
        lambda value: f"frozen weights: {value}",
        "frozen=: weights that are not trained",
        visibility=Visibility.NEVER,
    ),
    simple_axis(
        "weights",
        read.choice(Weights),
        "drawn",
        (
            "drawn in place; loaded: from_pretrained of safetensors in the trial's precision, which the trial writes "
            "and removes; loaded-fp32: the same in fp32"
        ),
        lambda value: f"weights={value}",
        lambda value: f"weights {words.LOADED[value]}",
        "weights=: read from safetensors at start-up, in the trial's precision or in fp32",
        visibility=Visibility.NEVER,
    ),
    Axis(
        "activation_checkpointing",
        read_checkpointing,
        "false",
        (
            "true: each block keeps only its input and recomputes the rest in backward; every-2 (or {every: "
            "2}): every second block; ops: also keeps attention outputs and every second matmul output"
        ),
        (
            column(
                "activation_checkpointing",
                bool,
                lambda _: "ckpt",
                silent=False,
                value=lambda spec: bool(spec.activation_checkpointing),
            ),
            Column("selective_checkpointing", str, _selective, str, since=17),
        ),
        Label(
            lambda spec: checkpointing_name(spec.activation_checkpointing),
            lambda spec: checkpointing_sentence(spec.activation_checkpointing),
            "ckpt: activation checkpointing",
        ),
        changes_speed=True,
        visibility=Visibility.BY_ENGINE,
    ),
    Axis(
        "attention",
        read.choice(Attention),
        "sdpa",
        ", ".join(Attention),
        (column("attention"),),
        same(lambda spec: spec.attention.value),
        changes_speed=True,
        visibility=Visibility.BY_ENGINE,
    ),
    simple_axis(
        "cross_entropy",
        read.choice(CrossEntropy),
        "full",
        (
            "full, chunked (logits of some tokens at a time), liger (Triton kernel; GPUs), model_dtype "
            "(full logits, never in fp32, as in many custom loops)"
        ),
        lambda value: f"ce={value}",
        lambda value: f"{value} cross entropy",
        "ce=: head and loss computed in chunks of tokens; model_dtype: logits never in fp32",
        changes_speed=True,
        visibility=Visibility.NEVER,
    ),
    simple_axis(
        "compile",
        read.choice(Compile),
        "none",
        "torch.compile: none, blocks (each block), model",
        lambda value: f"compile={value}",
        lambda value: f"torch.compile of {words.COMPILED[value]}",
        "compile=: torch.compile of the model, or of each of its blocks",
        changes_speed=True,
        visibility=Visibility.NEVER,
    ),
    simple_axis(
        "consistency",
        read.choice(Consistency),
        "sync",
        "parameter-server: sync (waits for all workers) or async",
        str,
        lambda _: "asynchronous updates",
        "async: the server applies each gradient on arrival",
    ),
    Axis(
        "checkpoint",
        read.checkpoint,
        "null",
        (
            "save every N steps and resume in fresh processes: N, or {every_steps: 4, resume_world_size: 1, "
            "fault: {rank: 1, step: 6}, folder: /x, keep: false}; fault: kill this rank after that step"
        ),
        (column("checkpoint", line=lambda value: f"saved {value}"),),
        Label(
            words.checkpoint_name,
            lambda spec: f"saved {spec.checkpoint}" if spec.checkpoint else "",
            (
                "save: checkpoint interval in steps; to: ranks after the resume; kill=rank@step: rank "
                "killed after that step"
            ),
        ),
    ),
    Axis(
        "tf_strategy",
        read.choice(TfStrategy),
        "multi-worker-mirrored",
        "tensorflow: also mirrored, parameter-server, tpu",
        (column("tf_strategy"),),
        unusual(
            "tf_strategy",
            str,
            lambda value: words.TF_STRATEGIES[value],
            "mirrored, parameter-server, tpu: TensorFlow's replicas in one process, its server, or a TPU's cores",
            always=True,
        ),
        sets_up_engine=True,
    ),
    Axis(
        "pipeline_schedule",
        read.choice(PipelineSchedule),
        "1f1b",
        "pipeline: 1f1b, gpipe (torch), deepspeed (PipelineModule, 1F1B)",
        (column("pipeline_schedule"),),
        Label(
            lambda spec: spec.pipeline_schedule.value if spec.strategy == "pipeline" else "",
            lambda spec: f"pipeline schedule {spec.pipeline_schedule}" if spec.strategy == "pipeline" else "",
            "1f1b, gpipe: pipeline schedule",
        ),
        sets_up_engine=True,
    ),
    Axis("data", label=same(lambda spec: f"{spec.data.kind.value} data", in_sentences=False)),
)
"""In the order of the parts of a trial's name and of the example of a sweep file."""
