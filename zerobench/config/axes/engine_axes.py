"""Axes that set up one engine or set how a trial's figures are obtained, and the repeat of a trial."""

from pathlib import Path

from zerobench.common.units import brief, format_bytes
from zerobench.config.axes import axis_readers as read
from zerobench.config.axes import axis_words as words
from zerobench.config.axes.axis import Axis, Column, Label, Visibility
from zerobench.config.axes.axis_words import column, number, same, simple_axis, unusual
from zerobench.config.trial.trial import Compression, Evidence

ENGINE_AXES = (
    Axis(
        "bucket_bytes",
        read.or_null(read.positive),
        "null",
        "ddp: largest bucket of gradients; null: torch's own, 1 MiB and then 25 MiB",
        (column("bucket_bytes", int, lambda value: f"bucket={value}"),),
        unusual(
            "bucket_bytes",
            lambda value: f"bucket={brief(value)}",
            lambda value: f"buckets of {format_bytes(value)}",
            "bucket=: bytes of DDP's buckets",
        ),
        sets_up_engine=True,
    ),
    simple_axis(
        "compression",
        read.choice(Compression),
        "none",
        "ddp: none, fp16, bf16, powersgd, onebit",
        str,
        lambda value: f"gradients compressed by {value}",
    ),
    simple_axis(
        "reshard_after_forward",
        read.switch,
        "true",
        "fsdp: free gathered parameters after a block's forward pass",
        lambda _: "kept",
        lambda _: "parameters kept gathered after forward",
        "kept: parameters stay gathered after forward (reshard_after_forward false)",
        always=False,
        kind=bool,
        sets_up_engine=True,
    ),
    simple_axis(
        "zero_init",
        read.switch,
        "true",
        "zero3: partitioned during construction (zero.Init); false: built in full on each rank",
        lambda _: "whole",
        lambda _: "built in full on each rank, then partitioned",
        "whole: stage 3 of a model built in full on every rank first (zero_init false)",
        kind=bool,
        sets_up_engine=True,
        visibility=Visibility.NEVER,
    ),
    Axis(
        "hpz_partition_size",
        read.or_null(read.group),
        "null",
        "zero3: group of ranks that holds a second copy of the parameters (ZeRO++ hpZ)",
        (column("hpz_partition_size", int, lambda value: f"hpz={value}"),),
        Label(
            words.zeropp_name,
            lambda spec: f"ZeRO++: {text}" if (text := words.zeropp_name(spec)) else "",
            (
                "hpz=: group of ranks that holds a second copy of the parameters; qwZ, qgZ: quantized "
                "weights, gradients in communication"
            ),
            always=True,
        ),
    ),
    Axis(
        "quantized_weights",
        read.switch,
        "false",
        "zero3: 8-bit parameter all-gather (ZeRO++ qwZ; needs GPUs)",
        (column("quantized_weights", bool, lambda _: "qwZ", silent=False),),
        said_by="hpz_partition_size",
    ),
    Axis(
        "quantized_gradients",
        read.switch,
        "false",
        "zero3: 4-bit gradient reduce-scatter (ZeRO++ qgZ; needs GPUs on two or more nodes)",
        (column("quantized_gradients", bool, lambda _: "qgZ", silent=False),),
        said_by="hpz_partition_size",
    ),
    simple_axis(
        "mics_shard_size",
        read.or_null(read.group),
        "null",
        "fsdp: size of the group that states are sharded over (MiCS; torch's HSDP)",
        lambda value: f"mics={value}",
        lambda value: f"states sharded over {value} ranks",
        "mics=: size of the group that states are sharded over",
        kind=int,
    ),
    simple_axis(
        "threads_per_rank",
        read.or_null(read.positive),
        "null",
        "CPU threads per rank; null: cores per node / ranks per node",
        lambda value: f"t{value}",
        lambda value: f"threads per rank {value}",
        "t: CPU threads per rank",
        always=False,
        kind=int,
        changes_speed=True,
    ),
    Axis(
        "gpu",
        read.gpu,
        "auto",
        (
            "GPU of emulated, simulated and formula trials: a name in the hardware catalogue (h200, a100); "
            "auto: this machine's; none: CPU ranks"
        ),
        (Column("gpu", str, line=lambda value: f"on {value}", is_key=False),),
        said_by="evidence",
        usual=read.AUTO,
        is_evidence=True,
    ),
    Axis(
        "rank",
        read.rank,
        "0",
        "rank of solo, emulated and simulated trials; last; all: each of up to eight (emulated)",
        said_by="evidence",
        usual=0,
        is_evidence=True,
    ),
    Axis(
        "ds_config",
        read.overrides,
        "{reduce_bucket_size: [5e7, 5e8]}",
        "any DeepSpeed key, abbreviated where unique; lists multiply",
        (Column("settings", str, line=str, is_key=False),),
        said_by="settings (zerobench.report.words.labels.DeepSpeedSettings)",
        sets_up_engine=True,
    ),
    Axis(
        "ds_config_file",
        read.config_file,
        "null",
        "your own DeepSpeed JSON instead of the generated configuration",
        label=same(lambda spec: Path(spec.ds_config_file or "").name, in_sentences=False),
        said_by="settings",
        sets_up_engine=True,
    ),
    Axis(
        "evidence",
        read.choice(Evidence),
        "[measured, simulated]",
        "measured: real ranks; solo: one process is one rank of many, on a real device; emulated: the same on torch's "
        "CUDA build without a GPU; simulated: without device and bytes; formula: closed forms",
        (column("evidence", silent=words.MEASURED),),
        Label(
            words.evidence_text,
            words.measured_sentence,
            f"{', '.join(world for world in Evidence if world is not Evidence.MEASURED)}: predicted, not measured",
            unmarked=words.MEASURED,
        ),
        is_evidence=True,
    ),
    Axis("repeat", label=number("rep", "repeat", lambda spec: spec.repeat, in_sentences=False)),
)
"""In the order of the parts of a trial's name, after those of the work."""
