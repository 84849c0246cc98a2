"""The time model fitted to published rows and judged on others.

    python benchmarks/timing/llm_foundry.py judge    # fits on half of the rows, judges on the other half; the table
    python benchmarks/timing/llm_foundry.py fit      # fits on all rows; prints what rates.yaml holds

llm_foundry.csv: MosaicML's LLM Foundry, scripts/train/benchmarking (commit in each row), FSDP with FULL_SHARD. Rows in
fp8 are left out. Constants stay near what is known of them (PRIOR), each by a spread of its own, so that what a set of
rows says nothing of (a network, where all are on one node) does not run away.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations
from math import log
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import numpy as np
from scipy.optimize import least_squares

from benchmarks.timing.fsdp_trace import Fsdp
from zerobench.config.hardware.hardware import Gpu, find_gpu
from zerobench.config.hardware.links import Links
from zerobench.config.models.parameters import ParameterCounts, count_parameters
from zerobench.config.models.presets import resolve_model
from zerobench.config.models.shapes import Shape
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import Precision
from zerobench.estimate.clock.collectives import KindTraffic
from zerobench.estimate.clock.device import Device, device_of
from zerobench.estimate.clock.host import block_issue, launch_seconds
from zerobench.estimate.clock.kernels import WORD_BYTES, moved_s
from zerobench.estimate.clock.latency import latency_s
from zerobench.estimate.clock.links import transfer_s
from zerobench.estimate.clock.rates import Rates, kind_rates, rates_of
from zerobench.estimate.clock.replay import Pace, replay
from zerobench.estimate.clock.step import expected, replayed
from zerobench.estimate.clock.trace import BACKWARD, FORWARD, Call
from zerobench.estimate.time.passes import Decoder, decoder_of, passes
from zerobench.estimate.time.step import Phases, step

FILE = Path(__file__).with_name("llm_foundry.csv")
JUDGED = Path(__file__).with_name("judged_only.csv")
GPUS = {
    "a100_40gb": "A100 SXM 40GB",
    "a100_80gb": "A100 SXM 80GB",
    "h100_80gb": "H100 SXM",
    "h100_96gb": "H100 SXM 96GB",
}
KINDS = {"a100_40gb": "a100", "a100_80gb": "a100", "h100_80gb": "h100", "h100_96gb": "h100"}
SHAPES = {
    "125m": (768, 12, 12),
    "350m": (1024, 24, 16),
    "760m": (1536, 24, 12),
    "1b": (2048, 24, 16),
    "3b": (2560, 32, 20),
    "7b": (4096, 32, 32),
    "13b": (5120, 40, 40),
    "30b": (7168, 48, 56),
    "70b": (8192, 80, 64),
}
"""Hidden size, layers and heads of MPT's models."""
VOCABULARY = 50368
PER_NODE = 8

PRIOR: dict[str, tuple[float, float]] = {
    "gemm_share": (0.75, 0.2),
    "gemm_half_length": (200, 0.3),
    "attention_forward_share": (0.5, 0.4),
    "attention_backward_share": (0.4, 0.4),
    "memory_share": (0.8, 0.05),
    "forward_words": (21, 0.25),
    "backward_words": (27, 0.25),
    "loss_words": (10, 0.3),
    "step_s": (0.02, 1.0),
    "micro_batch_s": (0.005, 1.0),
    "link_share": (0.75, 0.1),
    "network_share": (0.7, 0.15),
    "contention": (0.2, 0.5),
    "jitter": (0.01, 0.7),
}
"""Each constant's middle, and how far (of its logarithm) it may well lie from it. Words: counted by hand over the block
that LLM Foundry runs (norms, residuals, GELU and copies read and written once each)."""
_SAME = 1e-3
_TIMED_ALONE = {"h100": {"gemm_share": (0.76, 0.02), "gemm_half_length": (200, 0.1)}}
"""What 234 products timed by themselves on an H100 say (benchmarks/gpu_campaign/h100/times_judged.md)."""
_SHARED = ("network_share", "jitter", "step_s", "micro_batch_s")
"""What is not the GPU's: few rows of others tell of it, so that it is that of the A100s' rows for all."""
_UPDATE_BYTES = 56
"""Moved a parameter by Lion with fp32 states, one kernel after another (llmfoundry/optim/lion.py: the update's lerp 12,
its sign 8, the weights' addition 12, the moment's lerp 12), after the gradient's norm and clipping (12)."""
NOISE = 0.04
"""Of a row's time, by which rows of one configuration differ between releases."""


@dataclass(frozen=True)
class Row:
    """One published figure."""

    kind: str
    gpu: str
    model: str
    sequence_length: int
    world_size: int
    micro_batch_size: int
    micro_batches: int
    recomputed: float
    """The share of blocks whose forward pass runs again."""
    gradient_bytes: int
    """Of one gradient as it is reduced: MosaicML's Composer, FSDP's mixed_precision DEFAULT reduces in fp32, PURE in
    16 bits (composer/trainer/mosaic_fsdp_utils.py)."""
    step_s: float
    tokens_per_s: float
    gathers: int = 2
    """All-gathers of each block in a micro-batch: one where SHARD_GRAD_OP keeps it until the backward pass."""
    source: str = ""
    is_compiled: bool = False
    """By torch.compile, where its table has the same run without: the model knows no difference, and orders no pair of
    the two."""


def rows() -> list[Row]:
    """The rows in 16 bits."""
    return [_row(fields) for fields in _read(FILE) if "fp8" not in fields["precision"]]


def judged_only() -> list[Row]:
    """Rows of other tables, none of which is ever fitted."""
    return [
        Row(
            KINDS[fields["gpu"]],
            GPUS[fields["gpu"]],
            fields["model"],
            int(fields["seq_len"]),
            int(fields["gpus"]),
            int(fields["micro_batch"]),
            int(fields["grad_accum"]),
            float(fields["recomputed"]),
            int(fields["gradient_bytes"]),
            int(fields["micro_batch"])
            * int(fields["grad_accum"])
            * int(fields["seq_len"])
            / float(fields["tok_s_gpu"]),
            float(fields["tok_s_gpu"]) * int(fields["gpus"]),
            int(fields["gathers"]),
            fields["source"],
            fields["compiled_beside_eager"] == "1",
        )
        for fields in _read(JUDGED)
    ]


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _row(fields: dict[str, str]) -> Row:
    tokens = int(fields["global_batch"]) * int(fields["seq_len"])
    return Row(
        KINDS[fields["gpu"]],
        GPUS[fields["gpu"]],
        fields["model"],
        int(fields["seq_len"]),
        int(fields["gpus"]),
        int(fields["micro_batch"]),
        int(fields["grad_accum"]),
        float(fields["act_ckpt"] == "True"),
        4 if fields["mp_mode"] == "DEFAULT" else WORD_BYTES,
        tokens / float(fields["tok_s"]),
        float(fields["tok_s"]),
    )


def predicted_s(row: Row, rates: Rates) -> float:
    """The step of `row` by the model."""
    gpu, device, decoder, counts = _known(row, rates)
    tokens = row.micro_batch_size * row.sequence_length
    computing = passes(decoder, device, tokens, row.sequence_length, recomputed=row.recomputed)
    links = _links(gpu, rates)
    gather, reduce = (
        _moved_s(kind, row.world_size, nbytes * counts.total, links)
        + (decoder.layers + 1) * latency_s(kind, row.world_size, max(1, row.world_size // PER_NODE))
        for kind, nbytes in (("all_gather", WORD_BYTES), ("reduce_scatter", row.gradient_bytes))
    )
    compute, exposed, update = step(
        computing,
        row.micro_batches,
        Phases(gather, (row.gathers - 1) * gather + reduce),
        _update_s(counts.total / row.world_size, device),
        rates,
        ranks=row.world_size,
        overlaps=True,
    )
    return compute + exposed + update


def replayed_s(row: Row, rates: Rates) -> float:
    """The step of `row` by a replay of FSDP's issue order."""
    gpu, device, decoder, counts = _known(row, rates)
    nodes = max(1, row.world_size // PER_NODE)
    block = (counts.attention + counts.mlp) // decoder.layers
    engine = Fsdp(
        decoder,
        rates,
        row.micro_batch_size * row.sequence_length,
        row.sequence_length,
        row.recomputed,
        row.world_size,
        nodes,
        WORD_BYTES * block,
        WORD_BYTES * (counts.total - block * decoder.layers),
        row.gradient_bytes / WORD_BYTES,
        row.gathers,
        counts.total / row.world_size * _UPDATE_BYTES,
    )
    links = _links(gpu, rates)
    byte_s = moved_s(device, 1)
    trace = engine.trace(row.micro_batches)
    seconds = {
        call: _moved_s(call.kind, call.group_size, call.message_bytes, links)
        + latency_s(call.kind, row.world_size, nodes)
        for call in set(trace.items)
        if isinstance(call, Call)
    }
    slower = 1 + rates.jitter * log(row.world_size)
    blocks = row.micro_batches * decoder.layers
    passed = {FORWARD: (blocks, 0.0), BACKWARD: (row.recomputed * blocks, blocks)}
    launch_s = launch_seconds(
        trace, block_issue("fsdp", is_gated=decoder.is_gated), device.host, passed, decoder.layers
    )
    pace = Pace(device, slower, launch_s, defaultdict(lambda: byte_s), seconds.__getitem__)
    timeline = replay(trace, pace)
    if timeline is None:
        raise SystemExit("a rate is missing")
    return sum(replayed(timeline, rates, row.micro_batches))


def _moved_s(kind: str, ranks: int, nbytes: int, links: Links) -> float:
    """Seconds of a collective's bytes over the links."""
    return transfer_s([KindTraffic(kind, ranks, 1, nbytes, None)], PER_NODE, links, in_rings=True) or 0.0


def _known(row: Row, rates: Rates) -> tuple[Gpu, Device, Decoder, ParameterCounts]:
    """What the catalogue has of `row`, the device at these rates."""
    gpu = find_gpu(row.gpu)
    device = None if gpu is None else device_of(gpu, Precision.BF16, rates)
    model = model_of(row.model)
    decoder, counts = decoder_of(model), count_parameters(model)
    if gpu is None or device is None or decoder is None or counts is None:
        raise SystemExit(f"{row.gpu}: the catalogue lacks a figure")
    return gpu, device, decoder, counts


def _links(gpu: Gpu, rates: Rates) -> Links:
    return Links(
        link_gb_per_s=(gpu.link_gb_per_s or 0) / 2 * rates.link_share,
        network_gb_per_s=(gpu.network_gb_per_s or 0) * rates.network_share,
    )


def model_of(name: str) -> ModelSpec:
    """MPT's of such a size, or a preset."""
    if name not in SHAPES:
        return resolve_model(name)
    hidden, layers, heads = SHAPES[name]
    shape = Shape(family="gpt2", num_layers=layers, hidden_size=hidden, num_heads=heads, vocab_size=VOCABULARY)
    return shape.model_spec()


def _update_s(parameters: float, device: Device) -> float:
    return parameters * _UPDATE_BYTES / (device.memory_bytes_per_s * device.rates.memory_share)


TimeOf = Callable[[Row, Rates], float]
"""A step's seconds: by the closed form, which the rates are fitted with, or by a replay."""


def fitted(chosen: Sequence[Row], kind: str) -> Rates:
    """The rates of `kind` on its rows among `chosen`; what is `_SHARED` is that of the A100s' for all."""
    return _fitted(tuple(chosen), kind)


@cache
def _fitted(chosen: tuple[Row, ...], kind: str) -> Rates:
    mine = [row for row in chosen if row.kind == kind]
    prior = PRIOR | _TIMED_ALONE.get(kind, {})
    if kind != "a100":
        prior |= {name: (getattr(_fitted(chosen, "a100"), name), _SAME) for name in _SHARED}
    base, sigma = (np.array(column) for column in zip(*prior.values(), strict=True))
    truth = np.log([row.step_s for row in mine])

    def rates(z: np.ndarray) -> Rates:
        values = base * np.exp(z)
        shares = {
            name: float(min(value, 1.0) if name.endswith("share") or name == "contention" else value)
            for name, value in zip(PRIOR, values, strict=True)
        }
        return Rates(**shares, spread=0.1, source="fit")

    def residuals(z: np.ndarray) -> np.ndarray:
        now = rates(z)
        off = (np.log([predicted_s(row, now) for row in mine]) - truth) / NOISE
        robust = np.sign(off) * np.sqrt(2 * (np.sqrt(1 + off**2) - 1))  # a row far off pulls no more than a near one
        return np.concatenate([robust, z / sigma])

    return rates(least_squares(residuals, np.zeros(len(base)), diff_step=1e-3).x)


def errors(judged: Sequence[Row], by_kind: Callable[[str], Rates], time_of: TimeOf = predicted_s) -> np.ndarray:
    """(predicted - published) / published of each row's step."""
    return np.array([time_of(row, by_kind(row.kind)) / row.step_s - 1 for row in judged])


def _line(words: str, judged: Sequence[Row], by_kind: Callable[[str], Rates]) -> str:
    off = errors(judged, by_kind)
    far = np.abs(off)
    return (
        f"| {words} | {len(judged)} | {np.median(far):.1%} | {np.percentile(far, 90):.1%} | {far.max():.1%} | "
        f"{np.median(off):+.1%} | {held_inside(judged, by_kind):.0%} | {_in_order(*ordered(judged, by_kind))} |"
    )


def _in_order(right: int, pairs: int) -> str:
    return f"{right} of {pairs}" if pairs else "-"


def ordered(judged: Sequence[Row], by_kind: Callable[[str], Rates]) -> tuple[int, int]:
    """Pairs of one model, GPU and length whose tokens/s a GPU differ by more than 5 %: those in order, and all."""
    right = [is_right for *_, is_right in pairs(judged, by_kind)]
    return sum(right), len(right)


def pairs(judged: Sequence[Row], by_kind: Callable[[str], Rates]) -> list[tuple[Row, Row, bool]]:
    """The same pairs, the one that is faster a GPU first, and whether the model says so."""
    speeds = [(row, row.tokens_per_s / row.world_size, _speed(row, by_kind)) for row in judged]
    return [
        (fast, slow, predicted_fast > predicted_slow)
        for (fast, true_fast, predicted_fast), (slow, true_slow, predicted_slow) in permutations(speeds, 2)
        if _work(fast) == _work(slow) and true_fast > 1.05 * true_slow
    ]


def _work(row: Row) -> tuple[object, ...]:
    return row.model, row.gpu, row.sequence_length, row.is_compiled


def efficiencies(
    judged: Sequence[Row], by_kind: Callable[[str], Rates], times: int | None = None, *, same_batch: bool = True
) -> np.ndarray:
    """(predicted - published) efficiency with which the same work goes from some ranks to more, or to `times` as many;
    of `same_batch`, the same work a GPU.
    """
    work = [replace(row, world_size=0, step_s=0.0, tokens_per_s=0.0, source="") for row in judged]
    if not same_batch:
        work = [replace(row, micro_batch_size=0, micro_batches=0) for row in work]
    predicted = [_speed(row, by_kind) for row in judged]
    published = [row.tokens_per_s / row.world_size for row in judged]
    ranks = [row.world_size for row in judged]
    alike = [
        (a, b)
        for a, b in permutations(range(len(judged)), 2)
        if work[a] == work[b] and (ranks[a] < ranks[b] if times is None else times * ranks[a] == ranks[b])
    ]
    return np.array([predicted[b] / predicted[a] - published[b] / published[a] for a, b in alike])


def _speed(row: Row, by_kind: Callable[[str], Rates]) -> float:
    """Tokens/s a GPU."""
    tokens = row.micro_batches * row.micro_batch_size * row.sequence_length
    return tokens / predicted_s(row, by_kind(row.kind))


def held_inside(judged: Sequence[Row], by_kind: Callable[[str], Rates]) -> float:
    """The share of rows that lie within the interval that is said to hold eight of ten."""
    inside = 0
    for row in judged:
        gpu = find_gpu(row.gpu)
        assumed = {} if gpu is None else dict(rates_of(gpu)[1])  # of a GPU that no row was fitted on
        interval = expected((predicted_s(row, by_kind(row.kind)), 0.0, 0.0), kind_rates(row.kind).spread, assumed)
        inside += interval.low_s <= row.step_s <= interval.high_s
    return inside / len(judged)


def between_steps(judged: Sequence[Row], by_kind: Callable[[str], Rates]) -> list[float]:
    """The share of each row's step that is between steps: data, logging."""
    return [by_kind(row.kind).between_s(row.micro_batches) / predicted_s(row, by_kind(row.kind)) for row in judged]


def _between_steps_line(words: str, low: float, high: float) -> str:
    """Rows of the halves that were not fitted, by how much of their step lies between steps."""
    halves = [rows()[start::2] for start in (0, 1)]
    inside = count = 0
    for mine, other in ((0, 1), (1, 0)):
        by_kind = {kind: fitted(halves[mine], kind) for kind in ("a100", "h100")}.__getitem__
        shares = between_steps(halves[other], by_kind)
        chosen = [row for row, share in zip(halves[other], shares, strict=True) if low <= share < high]
        inside += round(held_inside(chosen, by_kind) * len(chosen)) if chosen else 0
        count += len(chosen)
    return f"between steps {words} of the step: {inside} of {count} rows not fitted inside"


def judge() -> str:
    """The table: fits on a part, judged on the rest."""
    everything = rows()
    lines = ["| fitted on | judged on | rows | median | 90 % | worst | bias | inside | pairs in order |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    halves = [everything[start::2] for start in (0, 1)]
    for mine, other, words in ((0, 1, "even rows | odd rows"), (1, 0, "odd rows | even rows")):
        rates = {kind: fitted(halves[mine], kind) for kind in ("a100", "h100")}
        lines.append(_line(words, halves[other], rates.__getitem__))
    one_node = [row for row in everything if row.world_size <= PER_NODE]
    rates = {kind: fitted(one_node, kind) for kind in ("a100", "h100")}
    more = [row for row in everything if row not in one_node]
    lines.append(_line("one node | 2 to 16 nodes", more, rates.__getitem__))
    lines.append(_line("shipped (all rows) | all rows", everything, kind_rates))
    between = [
        _between_steps_line(words, low, high)
        for words, low, high in (("under 2 %", 0, 0.02), ("2 to 10 %", 0.02, 0.1), ("a tenth or more", 0.1, 1))
    ]
    return "\n".join([*lines, *judged_only_lines(), "", *between])


def judged_only_lines() -> list[str]:
    """The lines of the rows that are never fitted, by where they come from."""
    by_source: dict[str, list[Row]] = {}
    for row in judged_only():
        by_source.setdefault(row.source.partition("@")[0].removeprefix("github:"), []).append(row)
    return [_line(f"shipped | {source}", source_rows, kind_rates) for source, source_rows in by_source.items()]


def main() -> None:
    """Print the table, or the constants."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    asked.add_argument("verb", choices=["judge", "fit"])
    if asked.parse_args().verb == "judge":
        print(judge())
        return
    for kind in ("a100", "h100"):
        rates = fitted(rows(), kind)
        print(kind, {name: float(f"{getattr(rates, name):.3g}") for name in PRIOR})


if __name__ == "__main__":
    main()
