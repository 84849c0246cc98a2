"""The roofline of a predicted step's kernels: what bounds each class, and where the step's computing time goes."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import altair as alt

from zerobench.common.units import format_seconds
from zerobench.estimate.clock.roofline import KernelClass, Roofline
from zerobench.estimate.time.predicted_speed import predicted_roofline
from zerobench.report.charts.render import Mark, Specification, drawing, haloed, in_columns, layered, mark, reach
from zerobench.report.charts.shown import share, whole
from zerobench.report.figures.run.runs import RunFigures
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.figure import Columns, Figure, columns_of_named
from zerobench.report.words import palette
from zerobench.report.words.column_units import time_unit

_KEY = "roofline"
_TERA = 1e12
_HEIGHT = 330
_LEAST, _MOST = 40.0, 4e3
"""FLOPs per byte that are drawn at least."""


def figure(runs: RunFigures) -> Figure | None:
    """Kernels of the trial that is expected to be fastest; None where no trial has a trace.

    Stages and offload move states and leave kernels as they are: one trial speaks for those of its shape.
    """
    timed = [(trial, trial.rate) for trial in whole(runs.figures)]
    rated = [(rate.tokens_per_s, trial) for trial, rate in timed if rate and rate.interval]
    for _, trial in sorted(rated, key=lambda pair: -pair[0]):
        roofline = predicted_roofline(runs.run(trial.run_id).trial(trial.trial_id))
        if roofline is not None:
            return _figure(trial, roofline)
    return None


def _figure(trial: TrialFigures, roofline: Roofline) -> Figure:
    title, rates = "Roofline of the step's kernels", roofline.device.rates
    bandwidth, products = share(rates.memory_share, 1), share(rates.gemm_share, 1)
    caption = (
        f"{trial.marked_label}, expected: the fastest trial with a trace. Points: matrix products by shape (M x K x N)"
        " and attention, larger for a larger share of the computing time. Intensity: FLOPs per byte if each operand"
        f" moves once. Solid: datasheet peaks. Dashed: {bandwidth} of the bandwidth, which element-wise"
        f" kernels and the update achieve, and {products} of the peak, which large products do."
    )
    return Figure(_KEY, title, caption, drawing(partial(_chart, roofline), _KEY, title), _table(roofline))


def _chart(roofline: Roofline, *, width: float) -> Specification:
    device, bounded = roofline.device, [kernels for kernels in roofline.classes if kernels.intensity]
    intensities = [kernels.intensity or 1.0 for kernels in bounded]
    low, high = min([_LEAST, *intensities]) / 2, max([_MOST, *intensities]) * 2
    speeds = [kernels.flops_per_s or device.peak_flops for kernels in bounded]
    foot = min([roofline.most_flops(low) / 2, *(speed / 2 for speed in speeds)])
    y_scale = reach(foot / _TERA, 2 * device.peak_flops / _TERA, type="log")
    x = alt.X("x:Q", title="FLOP per byte", scale=reach(low, high, type="log"))
    y = alt.Y("y:Q", title="TFLOP/s", axis=alt.Axis(format="~g"), scale=y_scale)
    line = {"color": "var(--muted)", "strokeWidth": 1.5, "aria": False}
    layers = []
    for gemm_share, memory_share, dash in (
        (1.0, 1.0, [1, 0]),
        (device.rates.gemm_share, device.rates.memory_share, [5, 4]),
    ):
        peak_flops, bytes_per_s = gemm_share * device.peak_flops, memory_share * device.memory_bytes_per_s
        corners = [
            {"x": at, "y": min(peak_flops, at * bytes_per_s) / _TERA} for at in (low, peak_flops / bytes_per_s, high)
        ]
        layers.append(mark("line", corners, {"x": x, "y": y}, strokeDash=dash, **line))
    return layered([*layers, *_points(roofline, bounded, x, y)], in_columns(width, 1)[1], _HEIGHT)


def _points(roofline: Roofline, bounded: Sequence[KernelClass], x: alt.X, y: alt.Y) -> list[Mark]:
    """A point for each class, and below it a name; products lie so close that one is named for all."""
    whole = sum(kernels.seconds for kernels in roofline.classes)
    rows = [_point(kernels, kernels.seconds / whole) for kernels in bounded]
    products = [row for row, kernels in zip(rows, bounded, strict=True) if kernels.kind == "products"]
    named = [row for row in rows if row not in products] + [{**row, "name": "matrix products"} for row in products[:1]]
    colour, size = alt.Color("colour:N", scale=None), alt.Size("area:Q", scale=None)
    dots = {"x": x, "y": y, "size": size, "color": colour, "description": "description:N"}
    names = haloed(named, {"x": x, "y": y, "text": "name:N"}, align="right", dx=-16, dy=16, fontSize=11)
    return [mark("circle", rows, dots, opacity=0.75), *names]


def _point(kernels: KernelClass, part: float) -> dict[str, Any]:
    speed, took = (kernels.flops_per_s or 0.0) / _TERA, format_seconds(kernels.seconds)
    return {
        "x": kernels.intensity,
        "y": speed,
        "area": 40 + 1500 * part,
        "colour": palette.category_colour("parameters" if kernels.kind == "products" else "activations"),
        "name": kernels.name,
        "description": f"{kernels.name}: {speed:,.0f} TFLOP/s, {took}, {share(part, 1)} of computing",
    }


def _table(roofline: Roofline) -> Columns:
    whole, unit = sum(kernels.seconds for kernels in roofline.classes), time_unit(c.seconds for c in roofline.classes)
    return columns_of_named(
        [
            {
                "kernels": kernels.name,
                unit.name: unit.show(kernels.seconds),
                "share of computing": f"{kernels.seconds / whole:.1%}",
                "FLOP per byte": "-" if kernels.intensity is None else f"{kernels.intensity:,.0f}",
                "TFLOP/s": "-" if kernels.flops_per_s is None else f"{kernels.flops_per_s / _TERA:,.0f}",
                "of the bound": "-"
                if kernels.intensity is None or kernels.flops_per_s is None
                else f"{kernels.flops_per_s / roofline.most_flops(kernels.intensity):.0%}",
            }
            for kernels in roofline.classes
        ]
    )
