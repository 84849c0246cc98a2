"""The time model beside three H100 and two H200: its constants, and whole steps told from kernels timed alone.

    python benchmarks/gpu_campaign/times_judged.py                  # writes h100/times_judged.md
    python benchmarks/gpu_campaign/times_judged.py --simulated RUN  # whole steps, by the traces of RUN's trials

Each machine has a folder: kernel_rates.csv is of kernel_rates.py, steps.csv and *.kernels.csv of step_times.py,
sustained.csv of sustained.py, trials.csv of h100_speed.yaml and offload.yaml; h100_third/expected.csv has what was
expected of the third and of the first H200 before they ran, offload_expected.csv what offload was on an H100. `alone`
makes its constants of the first machine's kernel_rates.csv: no step is among what it reads.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.gpu_campaign.measured import CELLS, Kernel, read
from benchmarks.prediction.simulated import gpu_trial, table
from zerobench.app.search.formula import formula_trial
from zerobench.common.grouped import grouped
from zerobench.config.hardware.hardware import Gpu, find_gpu
from zerobench.config.hardware.links import Links
from zerobench.config.hardware.overheads import CalibratedSteps, StepConstants
from zerobench.config.models.architecture import dimensions
from zerobench.config.models.parameters import count_parameters
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import Evidence, Offload, Precision, PredictionSpec, TrialSpec
from zerobench.estimate.clock.device import Device, device_of
from zerobench.estimate.clock.host import block_issue
from zerobench.estimate.clock.kernels import WORD_BYTES, attention_s, gemm_s, linear_s, moved_s
from zerobench.estimate.clock.place import usual_cluster
from zerobench.estimate.clock.rates import shipped_rates
from zerobench.estimate.time.expected import parts_of, published_step, timed_work
from zerobench.estimate.time.known import assumptions
from zerobench.estimate.time.passes import (
    Decoder,
    decoder_of,
    elementwise_bytes,
    linears,
    loss_bytes,
    passes,
)
from zerobench.estimate.time.transformers_blocks import as_run, words_of, words_over_width
from zerobench.records.store import load_run
from zerobench.records.trials import Trial
from zerobench.report.figures.calibrated_time import TimedStep, fitted_steps

Known = TypeVar("Known")

FOLDER = Path(__file__).with_name("h100")
SECOND = Path(__file__).with_name("h100_second")
THIRD = Path(__file__).with_name("h100_third")
MACHINES = {"first": FOLDER, "second": SECOND, "third": THIRD}
"""Three of one provider, each with another H100; the later, the slower its host."""
H200_FOLDERS = {"first": Path(__file__).with_name("h200"), "second": Path(__file__).with_name("h200_second")}
DRIVE_GB_PER_S = 2.65
"""Of the second H200's drive, in each direction: by 11.4 GB that one update swapped in 5.4 s, all in turns. What it is
rated at is not known; another trial on it is judged by this."""
OUT = FOLDER / "times_judged.md"
GPU, H200 = "H100 SXM", "H200 SXM"
H200_COLUMNS = ("step", "measured", "expected", "update", "expected", "by the others")
LENGTH = 2048
TRACED = ("llama-7b-passes-mb4-s2048-ckpt", "llama-1b-zero1-mb4-s2048", "llama-1b-torch-mb1-s2048")

LAUNCH_BOUND_S = 30e-6
"""Products that took less waited for the host: it issues one in 22 us (`host: linear`)."""
CACHED_BYTES = 1e8
"""Elementwise work on fewer comes partly from the cache (50 MB), as little of a step does."""


@dataclass(frozen=True)
class Work:
    """What a step computes: a model, its tokens, and whether its blocks run forward again."""

    spec: ModelSpec
    tokens: int
    positions: int
    recomputed: float = 0.0
    accumulates: bool = False
    """Whether gradients are added to those of the step before."""
    engine: str = "single"

    @classmethod
    def of_key(cls, key: str) -> Work:
        """Of a row of steps.csv."""
        [cell] = [cell for cell in CELLS if cell.key == key]
        tokens, again = cell.micro_batch_size * cell.sequence_length, float(cell.checkpointing)
        engine = cell.how if cell.how.startswith("zero") else "single"
        return cls(resolve_model(cell.model), tokens, cell.sequence_length, again, cell.how == "passes", engine)

    @property
    def decoder(self) -> Decoder:
        return _known(decoder_of(self.spec))

    @property
    def parameters(self) -> int:
        return _known(count_parameters(self.spec)).total


def kernels() -> tuple[Kernel, ...]:
    """What kernel_rates.py measured."""
    return tuple(
        Kernel(row["kind"], row["shape"], *(float(row[name]) for name in ("seconds", "flops", "moved_bytes")))
        for row in read(FOLDER / "kernel_rates.csv")
    )


@cache
def shipped() -> Device:
    """The H100 as rates.yaml has it."""
    return _known(device_of(_known(find_gpu(GPU)), Precision.BF16))


def shipped_for(work: Work) -> Device:
    """The same as it runs the blocks of `work`."""
    return as_run(shipped(), work.spec, work.decoder, work.positions, fuses=False, alone=True)


def _known(value: Known | None) -> Known:
    """What the presets and the catalogue have."""
    if value is None:
        raise ValueError("not in the catalogue")
    return value


def alone(work: Work, timed: tuple[Kernel, ...]) -> Device:
    """The H100 for `work` by kernels timed alone, and by the bytes that its blocks' operations read and write."""
    device = shipped()
    share, half = product_rates(timed)
    memory = memory_share(timed)
    update: dict[str, float] = {"gemm_share": share, "gemm_half_length": half, "memory_share": memory, "step_s": 0.0}
    update |= {f"attention_{name}_share": nearest_attention(work, timed, name) for name in ("forward", "backward")}
    update |= words_over_width(_known(words_of(work.spec)), work.decoder)
    update["loss_words"] = loss_words(timed, memory)
    return replace(device, rates=device.rates.model_copy(update=update))


def products(timed: Iterable[Kernel]) -> list[Kernel]:
    """Those that the device, not the host, is busy with."""
    return [each for each in timed if each.kind.startswith("product") and each.seconds > LAUNCH_BOUND_S]


@cache
def product_rates(timed: tuple[Kernel, ...]) -> tuple[float, float]:
    """The share of the peak and the half length with the least sum of absolute logarithms of errors."""
    pairs = ((share / 100, half) for share in range(60, 90) for half in range(0, 401, 25))
    chosen = products(timed)
    return min(pairs, key=lambda pair: sum(abs(math.log1p(error)) for error in product_errors(chosen, *pair)))


def product_errors(chosen: Iterable[Kernel], share: float, half: float) -> list[float]:
    """(Predicted - measured) / measured."""
    device = shipped()
    rates = device.rates.model_copy(update={"gemm_share": share, "gemm_half_length": half})
    at = replace(device, rates=rates)
    return [gemm_s(at, *each.product) / each.seconds - 1 for each in chosen]


def attention_share(kernel: Kernel) -> float:
    """Of the matrix peak; the mask hides half of the FLOPs."""
    return kernel.flops / 2 / kernel.seconds / shipped().peak_flops


def nearest_attention(work: Work, timed: Iterable[Kernel], name: str) -> float:
    """The share at the same size of a head and the nearest positions and tokens."""
    size = dimensions(work.spec).head_dim

    def distance(kernel: Kernel) -> float:
        sequences, _, positions, _ = kernel.sizes
        far = abs(math.log(positions / work.positions))
        return far + abs(math.log(sequences * positions / work.tokens))

    rows = [each for each in timed if each.kind.startswith(f"attention {name}") and each.sizes[3] == size]
    return attention_share(min(rows, key=distance))


def moving(timed: Iterable[Kernel]) -> list[Kernel]:
    """Elementwise kernels whose bytes no cache holds."""
    kinds = ("copy", "add", "fill", "cast to fp32", "silu", "norm in fp32, by parts")
    return [each for each in timed if each.kind in kinds and each.moved_bytes > CACHED_BYTES]


def memory_share(timed: Iterable[Kernel]) -> float:
    """Of the memory's bandwidth, where each kernel moves as many bytes as the others."""
    rates = [each.moved_bytes / each.seconds for each in moving(timed)]
    return statistics.harmonic_mean(rates) / shipped().memory_bytes_per_s


def loss_words(timed: tuple[Kernel, ...], share: float) -> float:
    """Logits cast to fp32, the loss forward and backward, and the cast back, as 16-bit words at that share."""
    seconds: dict[str, float] = defaultdict(float)
    for each in timed:
        if each.kind in {"logits to fp32", "loss forward", "loss backward"}:
            seconds[each.shape] += each.seconds * (2 if each.kind.startswith("logits") else 1)
    rate = shipped().memory_bytes_per_s * share / WORD_BYTES
    return statistics.median(took * rate / math.prod(map(int, shape.split("x"))) for shape, took in seconds.items())


def block_launch_s(timed: Iterable[Kernel]) -> float:
    """Of a block more, forward."""
    taken = {int(each.shape.split()[0]): each.seconds for each in timed if each.kind == "host: Llama forward"}
    (few, sooner), (many, later) = sorted(taken.items())
    return (later - sooner) / (many - few)


def passes_s(work: Work, device: Device) -> float:
    """Seconds of forward and backward; gradients that are kept are read and written once more, and one read."""
    issue = block_issue(work.engine, is_gated=work.decoder.is_gated)
    once_s = device.rates.in_programs * _last_product_s(work, device)
    both = passes(
        work.decoder, device, work.tokens, work.positions, recomputed=work.recomputed, kept_s=once_s, issue=issue
    )
    kept = moved_s(device, 3 * WORD_BYTES * work.parameters) if work.accumulates else 0.0
    return both.forward_s + both.backward_s + kept


def _last_product_s(work: Work, device: Device) -> float:
    """Of a block's forward pass: what a checkpointed one does not compute again."""
    return linear_s(device, work.tokens, work.decoder.mlp_width, work.decoder.hidden)[0]


def classes_s(work: Work, device: Device) -> dict[str, float]:
    """Seconds of the passes by class."""
    decoder, again = work.decoder, 1 + work.recomputed
    linear = [linear_s(device, work.tokens, *sizes) for sizes in linears(decoder)]
    products = sum(again * first + second for first, second in linear)
    head = sum(linear_s(device, work.tokens, decoder.hidden, decoder.vocabulary))
    forward, backward = attention_s(device, work.tokens, work.positions, decoder.attention_width)
    moved = elementwise_bytes(decoder, device.rates, work.tokens)
    kept = 3 * WORD_BYTES * work.parameters if work.accumulates else 0
    rest = decoder.layers * (again * moved[0] + moved[1]) + loss_bytes(decoder, device.rates, work.tokens) + kept
    return {
        "products": decoder.layers * (products - work.recomputed * _last_product_s(work, device)) + head,
        "attention forward": decoder.layers * again * forward,
        "attention backward": decoder.layers * backward,
        "all else": moved_s(device, rest),
    }


def class_of(name: str) -> str | None:
    """The class of a kernel in a profile; None of what only names others."""
    if name.startswith("Optimizer."):
        return None
    if "nvjet" in name or "cutlass" in name or "gemm" in name:
        return "products"
    if "cudnn" in name:
        return "attention forward" if "fprop" in name else "attention backward"
    return "optimizer" if "Adam" in name or "FusedOptimizer" in name else "all else"


def traced_s(key: str) -> dict[str, float]:
    """Seconds of a profiled step by class."""
    seconds: dict[str, float] = defaultdict(float)
    for row in read(FOLDER / f"{key}.kernels.csv"):
        if (kind := class_of(row["name"])) is not None:
            seconds[kind] += float(row["seconds"])
    return seconds


def off(predicted: float, measured: float) -> str:
    """The error."""
    return f"{100 * (predicted / measured - 1):+.1f}%"


def _spread(errors: Sequence[float]) -> str:
    sizes = sorted(map(abs, errors))
    return f"{100 * statistics.median(sizes):.1f}% / {100 * sizes[int(0.9 * len(sizes))]:.1f}%"


def constants(timed: tuple[Kernel, ...]) -> Iterator[tuple[str, str, str]]:
    """Each constant as shipped and as kernels alone have it."""
    rates, chosen = shipped().rates, products(timed)
    share, half = product_rates(timed)
    yield (
        "products: share of the peak, half length",
        f"{rates.gemm_share}, {rates.gemm_half_length:.0f}",
        f"{share}, {half}",
    )
    for words, some in (
        (f"... error of {len(chosen)} products, median / 90 %", chosen),
        ("... of those with 2048 tokens or more", [each for each in chosen if each.sizes[0] >= 2048]),
    ):
        old = product_errors(some, rates.gemm_share, rates.gemm_half_length)
        yield words, _spread(old), _spread(product_errors(some, share, half))
    for name in ("forward", "backward"):
        for size in (64, 128):
            rows = [each for each in timed if each.kind.startswith(f"attention {name}") and each.sizes[3] == size]
            shares = " ".join(f"{attention_share(each):.2f}" for each in rows if each.sizes[0] * each.sizes[2] >= 2048)
            yield f"attention {name}, heads of {size}", f"{getattr(rates, f'attention_{name}_share')}", shares
    slowest, *_, fastest = sorted(
        each.moved_bytes / each.seconds / shipped().memory_bytes_per_s for each in moving(timed)
    )
    yield "memory: share", f"{rates.memory_share}", f"{memory_share(timed):.2f} ({slowest:.2f} to {fastest:.2f})"
    for each in timed:
        if each.kind.startswith("AdamW"):
            reached = each.moved_bytes / each.seconds / shipped().memory_bytes_per_s
            yield f"{each.kind}: share of the memory", f"{rates.memory_share}", f"{reached:.2f}"
    yield "loss: words", f"{rates.loss_words}", f"{loss_words(timed, rates.memory_share):.1f}"
    largest = max(each.moved_bytes for each in timed if each.kind.endswith("pinned"))
    for each in timed:
        if each.kind.startswith("to ") and each.moved_bytes == largest:
            shipped_share = "0.8" if "pinned" in each.kind else "-"
            yield f"PCIe {each.kind}: share", shipped_share, f"{each.moved_bytes / each.seconds / 64e9:.2f}"
    issued = block_issue("single").forward.seconds(shipped_rates().host)
    yield "host: a Llama block forward", f"{1e3 * issued:.2f} ms", f"{1e3 * block_launch_s(timed):.2f} ms"


def by_class(timed: tuple[Kernel, ...]) -> Iterator[list[str]]:
    """Each profiled step's classes, measured and predicted."""
    for key in TRACED:
        work, found = Work.of_key(key), traced_s(key)
        old, new = (classes_s(work, device) for device in (shipped_for(work), alone(work, timed)))
        for name in ("products", "attention forward", "attention backward", "all else"):
            yield [key, name, f"{1e3 * found[name]:.1f}", off(old[name], found[name]), off(new[name], found[name])]


class MeasuredPasses(NamedTuple):
    """Forward and backward of a step that a machine ran."""

    machine: str
    name: str
    work: Work
    row: Mapping[str, str]

    @property
    def seconds(self) -> float:
        return float(self.row["forward_s"]) + float(self.row["backward_s"])

    @property
    def waits_for_host(self) -> bool:
        """Whether the host has issued a pass hardly before the device ends it, by the plain loop's clocks."""
        issued = [
            float(self.row[f"{name}_issued_s"]) / float(self.row[f"{name}_s"]) for name in ("forward", "backward")
        ]
        return max(issued) > _WAITING


_WAITING = 0.9


def measured_passes() -> Iterator[MeasuredPasses]:
    """Of plain loops on the H100; adapters' are another computation."""
    for machine, folder in MACHINES.items():
        for row in read(folder / "steps.csv"):
            if "lora" not in row["key"] and "-cpu" not in row["key"]:
                yield MeasuredPasses(machine, row["key"], Work.of_key(row["key"]), row)


def passes_table(timed: tuple[Kernel, ...], constants: StepConstants) -> Iterator[list[str]]:
    """The passes of whole steps, and how far each way to predict them is off."""
    steps = list(measured_passes())
    for row in read(FOLDER / "trials.csv"):
        name = f"zerobench: llama-1b {row['strategy']} mb{row['micro_batch_size']}"
        steps.append(MeasuredPasses("first", name, zerobench_work(row), row))
    errors = []
    for step in steps:
        work, measured = step.work, step.seconds
        devices = (shipped_for(work), alone(work, timed), shipped_for(work).calibrated(constants))
        predicted = [passes_s(work, device) for device in devices]
        issued = step.row.get("forward_issued_s")
        host = "-" if issued is None else f"{1e3 * float(issued) / work.decoder.layers:.2f}"
        errors.append([abs(each / measured - 1) for each in predicted])
        yield [step.machine, step.name, f"{1e3 * measured:.1f}", host, *(off(each, measured) for each in predicted)]
    medians = (f"{100 * statistics.median(column):.1f}%" for column in zip(*errors, strict=True))
    yield ["", "median of the sizes", "", "", *medians]


Timed = dict[str, TimedStep]
"""Measured steps by their trial in words."""
_AXES = (
    *("strategy", "offload_optimizer", "offload_param", "micro_batch_size", "sequence_length"),
    *("activation_checkpointing", "cross_entropy"),
)


def _axes(row: Mapping[str, str]) -> dict[str, object]:
    """What a row of trials.csv asks; the first machine's were all of one kind but for strategy and micro batch."""
    usual = {"sequence_length": str(LENGTH), "cross_entropy": "full", "activation_checkpointing": "False"}
    asked: dict[str, object] = {name: row.get(name) or usual.get(name, "none") for name in _AXES}
    for name in ("micro_batch_size", "sequence_length"):
        asked[name] = int(str(asked[name]))
    asked["activation_checkpointing"] = asked["activation_checkpointing"] == "True"
    return asked


def _words(asked: Mapping[str, object]) -> str:
    place = {"none": "", "cpu": "on the host", "nvme": "on a drive"}[str(asked["offload_optimizer"])]
    what = " states and parameters " if asked["offload_param"] != "none" else " states "
    moved = what + place if place else ""
    length = "" if asked["sequence_length"] == LENGTH else f" of {asked['sequence_length']}"
    again = " recomputed" * bool(asked["activation_checkpointing"])
    loss = f" {asked['cross_entropy']} loss" if asked["cross_entropy"] != "full" else ""
    return f"{asked['strategy']} mb{asked['micro_batch_size']}{length}{again}{moved}{loss}"


def _asked_of(spec: TrialSpec) -> dict[str, object]:
    return {name: getattr(value := getattr(spec, name), "value", value) for name in _AXES}


def timed_trials(predicted: Iterable[Trial], machine: str = "first") -> Timed:
    """A machine's trials of zerobench as they were measured, `predicted` by whatever these say of them."""
    found: Timed = {}
    rows = {_words(_axes(row)): row for row in read(MACHINES[machine] / "trials.csv")}
    gpu = _known(find_gpu(GPU))
    for trial in predicted:
        row = rows.get(words := _words(_asked_of(trial.spec)))
        if row is not None and words not in found:
            links = usual_cluster(trial.spec, gpu).links
            found[words] = _timed(trial, gpu, links, row, float(row["step_s"]))
    return found


def by_formula(machine: str) -> Iterator[Trial]:
    """The same trials without a trace, as `calibrate` finds measured ones."""
    for row in read(MACHINES[machine] / "trials.csv"):
        asked = _axes(row)
        if asked["offload_optimizer"] != "none":
            asked["optimizer"] = "cpu_adam"
        yield formula_trial(
            gpu_trial("llama-1b", 0, 1, **asked, evidence=Evidence.FORMULA, prediction=PredictionSpec(gpu=GPU))
        )


def whole_steps(found: Timed) -> list[list[str]]:
    """The first machine's trials by the shipped constants, and by those that `calibrate` fits to the other three."""
    return _steps_table(found, {name: [None, by_others("first")[name]] for name in found})


@cache
def later_steps(machine: str) -> list[list[str]]:
    """Another machine's as simulated before they ran, by shipped constants now, by the first machine's own, and by its
    own other trials.
    """
    found, elsewhere = by_formula_timed(machine), fitted_steps(list(by_formula_timed("first").values()))
    before = {_words(_axes(row)): float(row["expected_before_s"]) for row in read(MACHINES[machine] / "trials.csv")}
    return _steps_table(found, {name: [before[name], None, elsewhere, by_others(machine)[name]] for name in found})


class H200Step(NamedTuple):
    """A step on an H200, and how long its update took."""

    name: str
    step: TimedStep
    update_s: float


def h200_steps(folder: Path) -> Iterator[H200Step]:
    """A plain loop's; its update is timed by itself."""
    cells = {cell.key: cell for cell in CELLS}
    for row in read(folder / "steps.csv"):
        cell = cells[row["key"]]
        axes = {name: getattr(cell, name) for name in ("micro_batch_size", "sequence_length")}
        axes |= {"strategy": "single" if cell.is_plain else cell.how, "activation_checkpointing": cell.checkpointing}
        yield _h200_step(row["key"], cell.model, axes, row, row["step_s_median"])


def h200_trials() -> Iterator[H200Step]:
    """Of zerobench, on the second."""
    for row in read(H200_FOLDERS["second"] / "trials.csv"):
        axes = _axes(row) | {"optimizer": row["optimizer"], "nvme_path": "/nvme" if "nvme" in row.values() else None}
        yield _h200_step(f"{row['model']} {_words(axes)}", row["model"], axes, row, row["step_s"])


def _h200_step(name: str, model: str, axes: dict[str, Any], row: Mapping[str, str], step_s: str) -> H200Step:
    gpu = _known(find_gpu(H200))
    spec = gpu_trial(model, 0, 1, **axes, evidence=Evidence.FORMULA, prediction=PredictionSpec(gpu=H200))
    links = usual_cluster(spec, gpu).links.model_copy(update={"nvme_gb_per_s": DRIVE_GB_PER_S})
    return H200Step(name, _timed(formula_trial(spec), gpu, links, row, float(step_s)), float(row["update_s"]))


def _timed(trial: Trial, gpu: Gpu, links: Links, row: Mapping[str, str], step_s: float) -> TimedStep:
    """`trial` as it was measured."""
    passes = float(row["forward_s"]) + float(row["backward_s"])
    asked = _known(timed_work(trial, gpu, links))
    return TimedStep(gpu, False, asked, passes, step_s, tuple(assumptions(trial.spec)))


def h200_by_others() -> dict[str, float]:
    """How far the constants of zerobench's other trials there are off each of those on the device."""
    found = {name: step for name, step, _ in h200_trials() if step.asked.work.spec.offload_optimizer is Offload.NONE}
    return {name: _error(step, _by_others(found, name)) for name, step in found.items()}


def h200_table(steps: Iterable[H200Step]) -> Iterator[list[str]]:
    """Each with what is expected of it."""
    calibrated = h200_by_others()
    for name, step, update_s in steps:
        said, parts = _known(published_step(step.asked)), _known(parts_of(step.asked))
        yield [
            name,
            f"{1e3 * step.step_s:.0f}",
            f"{1e3 * said.step_s:.0f} ({1e3 * said.low_s:.0f} to {1e3 * said.high_s:.0f})",
            f"{1e3 * update_s:.0f}",
            f"{1e3 * parts[2]:.0f}",
            f"{100 * calibrated[name]:+.1f}%" if name in calibrated else "-",
        ]


@cache
def by_others(machine: str) -> dict[str, CalibratedSteps]:
    """What a machine's other trials say together, for each of them."""
    found = by_formula_timed(machine)
    return {name: _by_others(found, name) for name in found}


def _by_others(found: Timed, name: str) -> CalibratedSteps:
    return fitted_steps([other for words, other in found.items() if words != name])


def _steps_table(found: Timed, said: Mapping[str, Sequence[float | CalibratedSteps | None]]) -> list[list[str]]:
    """Each measured step with the errors of what is said of it, and their medians below."""
    errors = {name: [_error(step, each) for each in said[name]] for name, step in found.items()}
    rows = [
        [name, f"{1e3 * found[name].step_s:.1f}", *(f"{100 * each:+.1f}%" for each in off)]
        for name, off in errors.items()
    ]
    return [*rows, ["median of the sizes", "", *_medians(errors.values())]]


def _error(step: TimedStep, said: float | CalibratedSteps | None) -> float:
    """Of seconds that were said, or of what is expected with constants: the shipped ones, or those of trials."""
    if isinstance(said, float):
        return said / step.step_s - 1
    constants, factor = (None, 1.0) if said is None else (said.constants, said.factor)
    return factor * sum(_known(parts_of(step.asked.at(constants)))) / step.step_s - 1


def _medians(errors: Iterable[Sequence[float]]) -> Iterator[str]:
    return (f"{100 * statistics.median(map(abs, column)):.1f}%" for column in zip(*errors, strict=True))


@cache
def by_formula_timed(machine: str) -> Timed:
    """What constants are fitted to."""
    return timed_trials(by_formula(machine), machine)


@cache
def own_constants() -> StepConstants:
    """Of the first machine, by all four trials."""
    return _known(fitted_steps(list(by_formula_timed("first").values())).constants)


def zerobench_work(row: Mapping[str, str]) -> Work:
    """Of a row of trials.csv."""
    tokens = LENGTH * int(row["micro_batch_size"])
    return Work(resolve_model("llama-1b"), tokens, LENGTH, engine=row["strategy"])


def sustained() -> Iterator[list[str]]:
    """Each repeated kernel as it begins on a cool chip, and in its last second."""
    for name, lines in grouped(read(SECOND / "sustained.csv"), lambda row: row["kernel"]).items():
        end_s = float(lines[-1]["at_s"])
        last = [line for line in lines if float(line["at_s"]) > end_s - 1]
        first_s, last_s = float(lines[0]["seconds"]), statistics.median(float(line["seconds"]) for line in last)
        clock, power = (statistics.median(float(line[each]) for line in last) for each in ("sm_mhz", "power_w"))
        yield [
            name,
            f"{1e6 * first_s:.0f}",
            f"{1e6 * last_s:.0f}",
            off(last_s, first_s),
            f"{clock:.0f}",
            f"{power:.0f}",
        ]


def text() -> str:
    """All tables."""
    timed, own = kernels(), own_constants()
    shares = ("class", "shipped", "timed alone")
    return "\n".join(
        (
            "# The time model beside three H100 and two H200\n",
            *table(shares, constants(timed)),
            "Kernels of three profiled steps, ms; errors of the shipped constants, and of those of kernels alone.\n",
            *table(("step", "class", "measured", "shipped", "alone"), by_class(timed)),
            "Forward and backward together, ms; what the host took to issue a block forward; errors, the last by the",
            "constants that zerobench's own four trials give together:",
            (
                f"kernels {own.slower:.2f} times as long, a launch {1e6 * own.launch_s:.1f} us, Python "
                f"{own.python_slower:.2f} times as long, {1e3 * own.step_s:.1f} ms between steps.\n"
            ),
            *table(
                ("machine", "passes", "measured", "host, ms a block", "shipped", "alone", "own"),
                passes_table(timed, own),
            ),
            "Whole steps of zerobench's trials on the first machine, ms; calibrated: by the other three.\n",
            *table(("trial", "measured", "shipped", "calibrated"), whole_steps(by_formula_timed("first"))),
            *chain.from_iterable(_later_table(machine) for machine in ("second", "third")),
            "A plain loop's steps on an H200, ms, many in one process, whose host slows down as it goes on; by",
            "shipped constants. The update is timed by itself.\n",
            *table(H200_COLUMNS, h200_table(h200_steps(H200_FOLDERS["first"]))),
            "On a second, each in a process of its own, and zerobench's trials there, with what the constants of the",
            "other trials on the device are off each.\n",
            *table(H200_COLUMNS, h200_table([*h200_steps(H200_FOLDERS["second"]), *h200_trials()])),
            "Kernels repeated for three seconds: us at first and in the last second, where the chip holds 700 W.\n",
            *table(("kernel", "at first", "at last", "longer", "MHz", "W"), sustained()),
        )
    )


def _later_table(machine: str) -> Iterator[str]:
    yield f"On the {machine}: calibrated by the first machine's four, and by its own others.\n"
    yield from table(
        ("trial", "measured", "before it ran", "shipped", "by the first", "by the others"), later_steps(machine)
    )


def main() -> None:
    """Write the tables, or print what a run's trials are replayed to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulated", type=Path, metavar="RUN", help="folder of h100_speed.yaml's run, simulated")
    asked = parser.parse_args()
    if asked.simulated is None:
        OUT.write_text(text(), encoding="utf-8")
        print(text())
    else:
        found = timed_trials(load_run(asked.simulated).trials())
        print("\n".join(table(("trial", "measured", "shipped", "calibrated"), whole_steps(found))))


if __name__ == "__main__":
    main()
