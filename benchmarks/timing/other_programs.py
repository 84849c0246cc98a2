"""Expected steps beside those that other programs published.

    python benchmarks/timing/other_programs.py    # writes other_programs.md

Each row is a trial as a user would state it, and its step is that of the formula world by shipped rates, but for one:
how much longer computing takes in a program than its kernels by themselves, of one rank or of several (rates.yaml,
`alone` and `among_ranks`). That is what all other programs' rows say, so that none is judged by its own; what all
together say is shipped. Of these rows came too how an A100's attention grows with length (vectorlm's differences), what
an update on the host reaches (zenflow's two), and the widths of intervals, which were set to hold eight of ten.
vectorlm timed micro-batches without an update or a reduction: its rows have so many that neither weighs. Errors:
(expected - published) / published of the step's time.
"""

from __future__ import annotations

import csv
import json
import statistics
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, combinations
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.prediction.simulated import gpu_trial, table
from zerobench.app.search.formula import formula_trial
from zerobench.common.grouped import grouped
from zerobench.config.hardware.hardware import find_gpu
from zerobench.config.hardware.links import links_of
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import Compile, Offload, PredictionSpec, TrialSpec
from zerobench.estimate.clock.order import least_ratio
from zerobench.estimate.clock.step import ExpectedStep
from zerobench.estimate.time.expected import TimedWork, parts_of, published_step, timed_work

FILE = Path(__file__).with_suffix(".csv")
TABLE = Path(__file__).with_suffix(".md")


@dataclass(frozen=True)
class Row:
    """One published figure."""

    source: str
    gpu: str
    spec: TrialSpec
    runs_whole: bool
    """Whether its checkpointed blocks run again to their end: reentrant checkpointing, torch before 2.1, or blocks that
    are compiled within their checkpoint."""
    host_gb_per_s: float | None
    """Of a node's memory, by its processors' datasheet."""
    step_s: float
    """Of one optimizer step, by its tokens and the published tokens/s of a GPU."""

    @property
    def tokens(self) -> int:
        """A step's on one GPU."""
        spec = self.spec
        return spec.gradient_accumulation_steps * spec.micro_batch_size * spec.sequence_length

    @property
    def work(self) -> tuple[object, ...]:
        """Rows alike in it are compared by speed."""
        return self.program, self.gpu, self.spec.model.model_dump_json(), self.spec.sequence_length

    @property
    def program(self) -> str:
        """Who published it."""
        return self.source.split(",")[0]


@dataclass(frozen=True)
class Judged:
    """A row beside the step that is expected of it."""

    row: Row
    expected: ExpectedStep

    @property
    def error(self) -> float:
        return self.expected.step_s / self.row.step_s - 1

    @property
    def tokens_per_s(self) -> tuple[float, float]:
        """Of a GPU, published and expected."""
        return self.row.tokens / self.row.step_s, self.row.tokens / self.expected.step_s

    @property
    def is_inside(self) -> bool:
        """Whether the published step lies in the interval that is said to hold eight of ten."""
        return self.expected.low_s <= self.row.step_s <= self.expected.high_s


def rows() -> Iterator[Row]:
    """The file."""
    with FILE.open(newline="", encoding="utf-8") as file:
        for fields in csv.DictReader(file):
            spec = _spec(fields["model"], fields["gpu"], json.loads(fields["axes"]))
            host = float(fields["host_gb_per_s"]) if fields["host_gb_per_s"] else None
            row = Row(fields["source"], fields["gpu"], spec, fields["runs_whole"] == "yes", host, step_s=1.0)
            yield replace(row, step_s=row.tokens / float(fields["tokens_per_s_per_gpu"]))


def _spec(model: str, gpu: str, axes: dict[str, object]) -> TrialSpec:
    stated = {"prediction": PredictionSpec(gpu=gpu), **axes}
    config = json.loads(model) if model.startswith("{") else None
    return gpu_trial(
        model if config is None else ModelSpec(name=f"{config['model_type']} as stated", hf_config=config),
        0,
        1,
        **stated,
    )


def timed(row: Row) -> TimedWork:
    """The work of `row` at shipped rates. Raises SystemExit: no time is expected of such work."""
    gpu = find_gpu(row.gpu)
    links = None if gpu is None else links_of(gpu, host_memory_gb_per_s=row.host_gb_per_s)
    asked = None if gpu is None or links is None else timed_work(formula_trial(row.spec), gpu, links)
    if asked is None:
        raise SystemExit(f"no expected time of {row.source}")
    return asked._replace(stops_early=not row.runs_whole)


class Computing(NamedTuple):
    """A published step as what is expected of it must be made longer."""

    row: Row
    work: TimedWork
    alone_s: float
    """What the step is expected to take with its kernels as they are by themselves."""
    longer_s: float
    """And where these take a tenth longer."""

    @property
    def is_alone(self) -> bool:
        """Whether it is of one rank."""
        return self.row.spec.world_size == 1

    def error(self, in_programs: float) -> float:
        """Where they take so many times as long."""
        return (self.alone_s + 10 * (in_programs - 1) * (self.longer_s - self.alone_s)) / self.row.step_s - 1


def in_a_program(work: TimedWork, times: float) -> TimedWork:
    """Where kernels take so many times as long as by themselves."""
    rates = work.device.rates.model_copy(update={"in_programs": times})
    return work._replace(device=replace(work.device, rates=rates))


def computing(rows: Iterable[Row]) -> Iterator[Computing]:
    """Of each row."""
    for row in rows:
        work = timed(row)
        yield Computing(row, work, *(sum(parts_of(in_a_program(work, times)) or ()) for times in (1.0, 1.1)))


def in_programs(steps: Iterable[Computing]) -> float:
    """How many times as long computing takes by the median program, whose error is its rows' median; of what stays on
    the device.
    """
    on_device = [each for each in steps if each.row.spec.offload_optimizer is Offload.NONE]
    by_program = grouped(on_device, lambda each: each.row.program).values()

    def bias(times: float) -> float:
        return statistics.median(statistics.median(each.error(times) for each in some) for some in by_program)

    return _SOUGHT[bisect_left(_SOUGHT, 0.0, key=bias)]


_SOUGHT = [1 + thousandth / 1000 for thousandth in range(-200, 500)]


def judged(rows: Iterable[Row]) -> list[Judged]:
    """Each row by what all other programs say of computing, by one rank or by several."""
    steps = list(computing(rows))
    by_others = {
        (program, is_alone): in_programs(
            each for each in steps if each.row.program != program and each.is_alone is is_alone
        )
        for program, is_alone in dict.fromkeys((each.row.program, each.is_alone) for each in steps)
    }
    return [_judged(each.row, each.work, by_others[each.row.program, each.is_alone]) for each in steps]


def _judged(row: Row, work: TimedWork, in_programs: float) -> Judged:
    step = published_step(in_a_program(work, in_programs))
    if step is None:
        raise SystemExit(f"no expected time of {row.source}")
    return Judged(row, step)


def text(all_judged: Iterable[Judged]) -> str:
    """Each row, and each program's together."""
    by_program = grouped(all_judged, lambda each: each.row.program)
    together = [_together(program, some) for program, some in by_program.items()]
    everything = list(chain.from_iterable(by_program.values()))
    on_device = [each for each in everything if each.row.spec.offload_optimizer is Offload.NONE]
    together += [_together("all", everything), _together("all on the device", on_device)]
    head = ("program", "rows", "median", "90 %", "bias", "inside", "pairs in order")
    columns = ("program", "model", "GPUs", "setting", "tokens", "published s", "expected s", "error", "inside")
    each_row = map(_cells, everything)
    return "\n".join(("# Expected steps beside other programs'\n", *table(head, together), *table(columns, each_row)))


def _cells(each: Judged) -> list[str]:
    spec = each.row.spec
    setting = [spec.strategy, "recomputed" * bool(spec.activation_checkpointing)]
    setting.append("compiled" * (spec.compile is not Compile.NONE))
    setting += [f"{spec.offload_optimizer.value} offload" * (spec.offload_optimizer is not Offload.NONE)]
    tokens = f"{spec.gradient_accumulation_steps} x {spec.micro_batch_size} x {spec.sequence_length}"
    return [
        each.row.program,
        spec.model.name,
        f"{spec.world_size} {each.row.gpu}",
        ", ".join(filter(None, setting)),
        tokens,
        f"{each.row.step_s:.2f}",
        f"{each.expected.step_s:.2f} ({each.expected.low_s:.2f} to {each.expected.high_s:.2f})",
        f"{each.error:+.0%}",
        "yes" if each.is_inside else "no",
    ]


def _together(program: str, some: list[Judged]) -> list[str]:
    errors = [each.error for each in some]
    far = [abs(error) for error in errors]
    inside = f"{sum(each.is_inside for each in some)} of {len(some)}"
    middle, most = (
        statistics.median(far),
        statistics.quantiles(far, n=10, method="inclusive")[-1] if far[1:] else far[0],
    )
    pairs = in_order(some)
    in_words = f"{sum(pairs)} of {len(pairs)}" if pairs else "-"
    bias = statistics.median(errors)
    return [program, str(len(some)), f"{middle:.1%}", f"{most:.1%}", f"{bias:+.1%}", inside, in_words]


def in_order(some: Iterable[Judged]) -> list[bool]:
    """Of each pair of a program's rows of one model, GPU and length whose published speeds differ by more than 5 %,
    whether the same one is expected to be faster.
    """
    speeds = [(one.tokens_per_s, other.tokens_per_s) for one, other in _pairs(some)]
    return [
        (published > other) == (expected > than)
        for (published, expected), (other, than) in speeds
        if max(published, other) > 1.05 * min(published, other)
    ]


def surely_in_order(some: Iterable[Judged]) -> list[bool]:
    """Of each pair whose order is said to be sure (order.py), whether the same one was faster."""
    by_speed = [sorted(pair, key=lambda each: each.tokens_per_s[1]) for pair in _pairs(some)]
    return [
        slow.tokens_per_s[0] < fast.tokens_per_s[0]
        for slow, fast in by_speed
        if least_ratio(slow.expected, fast.expected) > slow.row.tokens / fast.row.tokens
    ]


def _pairs(some: Iterable[Judged]) -> Iterator[tuple[Judged, Judged]]:
    for alike in grouped(some, lambda each: each.row.work).values():
        yield from combinations(alike, 2)


def main() -> None:
    """Write the table."""
    TABLE.write_text(text(judged(rows())), encoding="utf-8")
    print(TABLE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
