"""Predicted step on other hardware, or with larger micro-batches: the same trace, or closed form, at other rates or
sizes; nothing is run.

zerobench explain RUN TRIAL --what-if link=2x
zerobench explain RUN TRIAL --what-if gpu="B200 SXM",network=100GB/s
zerobench explain RUN TRIAL --what-if batch=2x
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from zerobench.common.errors import UserError, unknown_choice
from zerobench.common.units import format_seconds
from zerobench.config.derived.cluster import read_rate
from zerobench.config.hardware.hardware import Gpu, known_gpu
from zerobench.config.hardware.links import Links, links_of
from zerobench.estimate.clock.larger import of_more_tokens
from zerobench.estimate.clock.place import place_of
from zerobench.estimate.clock.step import ExpectedStep
from zerobench.estimate.time.expected import expected_step, why_no_time
from zerobench.records.trials import Trial
from zerobench.report.explain.topic import Topic, says

_OPTION = "--what-if"
_LINKS: Mapping[str, str] = {
    "link": "link_gb_per_s",
    "network": "network_gb_per_s",
    "host-link": "host_link_gb_per_s",
    "host-memory": "host_memory_gb_per_s",
    "nvme": "nvme_gb_per_s",
}
"""Rates by the words of the option: those of Links."""
_TIMES = re.compile(r"(\d+(?:\.\d+)?)x")
_BATCH = "batch"
_WHOLE_TIMES = re.compile(r"([2-9]|[1-9]\d{1,3})x")


def what_if_topic(trial: Trial, asked: str) -> Topic:
    """The expected step of `trial`, and that with the changes `asked`, as `NAME=VALUE,...`.

    Raises UserError: a change that is none, or a trial that no time is expected of.
    """
    place = place_of(trial)
    now = None if place is None else expected_step(trial, *place)
    if place is None:
        raise UserError(f"{_OPTION}: no expected time for this trial; use one predicted for a GPU")
    if now is None:
        raise UserError(f"{_OPTION}: no expected time for this trial: {why_no_time(trial, *place)}")
    changes = [_split(part) for part in asked.split(",")]
    changed = _changed(place, changes)
    larger = _set_batch(trial, [value for name, value in changes if name == _BATCH])
    then = expected_step(larger, *changed)
    if then is None:
        raise UserError(f"{_OPTION}: the catalogue lacks a rate of {changed[0].name}")
    factor = then.step_s / now.step_s
    gain = larger.spec.micro_batch_size / trial.spec.micro_batch_size / factor - 1
    speed = f" Tokens/s: {100 * gain:+.1f}%; memory not asked." if larger is not trial else ""
    return Topic(
        f"With {asked}",
        says(
            f"Expected step: {_interval_words(now)}.",
            f"Changed: {_interval_words(then)}: {100 * (factor - 1):+.1f}%.{speed}",
        ),
        {"what_if": {"asked": asked, "expected_step_s": now.step_s, "changed_step_s": then.step_s}},
    )


def _interval_words(expected: ExpectedStep) -> str:
    parts = ", ".join(f"{format_seconds(seconds)} {name}" for name, seconds in expected.parts.items())
    low, high = map(format_seconds, (expected.low_s, expected.high_s))
    return f"{format_seconds(expected.step_s)} ({low} to {high}): {parts}"


def _set_batch(trial: Trial, asked: Sequence[str]) -> Trial:
    """`trial` with micro-batches so many times as large; itself where none is asked."""
    for value in asked:
        times = _WHOLE_TIMES.fullmatch(value)
        if times is None:
            raise UserError(f"{_OPTION} {_BATCH}: {value!r} is not a whole multiple from 2x; for example {_BATCH}=2x")
        trial = of_more_tokens(trial, int(times[1]))
    return trial


def _changed(place: tuple[Gpu, Links], changes: Sequence[tuple[str, str]]) -> tuple[Gpu, Links]:
    """Another GPU first, with its links; then the rates."""
    gpu, links = place
    for name, value in changes:
        if name == "gpu":
            gpu = known_gpu(value, f"{_OPTION} gpu")
            others = {"host_memory_gb_per_s": links.host_memory_gb_per_s, "nvme_gb_per_s": links.nvme_gb_per_s}
            links = links_of(gpu).model_copy(update=others)
    rates = {_LINKS[name]: _rate(name, value, links) for name, value in changes if name in _LINKS}
    return gpu, links.model_copy(update=rates)


def _split(part: str) -> tuple[str, str]:
    name, equals, value = (text.strip() for text in part.partition("="))
    if not equals or not value:
        raise UserError(f"{_OPTION}: {part!r} is not a change; for example link=2x")
    if name not in {"gpu", *_LINKS, _BATCH}:
        raise unknown_choice(_OPTION, name, ["gpu", *_LINKS, _BATCH])
    return name, value


def _rate(name: str, value: str, links: Links) -> float:
    """`2x` of what it is, or a rate with its unit; 10^9 bytes a second."""
    times = _TIMES.fullmatch(value)
    if times is None:
        return read_rate(f"{_OPTION} {name}", value) / 1e9
    rate = getattr(links, _LINKS[name])
    if not float(times[1]):
        raise UserError(f"{_OPTION} {name}: {value!r}: must be above 0")
    if rate is None:
        raise UserError(f"{_OPTION} {name}: {value!r}: base rate unknown; give a rate such as 50GB/s")
    return float(rate) * float(times[1])
