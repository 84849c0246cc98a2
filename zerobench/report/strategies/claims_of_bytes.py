"""Claims about the bytes that a rank sends in a step."""

from collections.abc import Callable, Sequence
from functools import partial

from zerobench.report.strategies.claim import NEAR, Claim, ClaimRows, agrees_with_form, judged, ratio, unjudged
from zerobench.report.strategies.rows import ComparedSide
from zerobench.spec.roles import num_workers
from zerobench.units import format_bytes


def all_reduce(known: ClaimRows) -> Claim:
    text = "An all-reduce of gradients sends 2 (n-1)/n of their size per rank"
    rows = known.of("ddp", "zero0")
    counted = [row for row in rows if row.figures.sent_bytes is not None and row.figures.formula_sent_bytes]
    if not counted:
        return unjudged(text, "needs a trial with counted bytes")
    sentence = "; ".join(
        f"{row.label} sends {format_bytes(round(row.figures.sent_bytes or 0))} per rank and step, "
        f"{format_bytes(round(row.figures.formula_sent_bytes or 0))} by the closed form"
        for row in counted
    )
    return judged(text, all(agrees_with_form(row.figures) for row in counted), sentence)


def server_moves(known: ClaimRows) -> Claim:
    text = "A parameter server moves 2 x the weights per worker and step, all through the server"
    sides = [row for row in known.rows if row.spec.strategy == "parameter-server" and row.is_believed]
    counted = [row for row in sides if row.figures.sent_bytes is not None and row.figures.received_bytes is not None]
    if not counted:
        return unjudged(text, "needs a parameter-server trial with counted bytes")
    most = max(num_workers(row.spec) for row in counted)
    shown = {row.figures.role: row for row in reversed(counted) if num_workers(row.spec) == most}
    sentence = "; ".join(
        f"{'the server' if row.figures.is_server else 'a worker'} of {row.label} sends "
        f"{format_bytes(round(row.figures.sent_bytes or 0))} and gets "
        f"{format_bytes(round(row.figures.received_bytes or 0))} with {most} workers"
        for row in shown.values()
    )
    return judged(text, all(agrees_with_form(row.figures) for row in counted), sentence)


def _against_ddp(text: str, strategies: Sequence[str], holds: Callable[[float], bool], known: ClaimRows) -> Claim:
    """Bytes sent over those of ddp on as many ranks, or of its closed form where ddp was not run so."""
    ratios = [(row, ratio) for row in known.of(*strategies) if (ratio := _to_ddp(known, row)) is not None]
    if not ratios:
        return unjudged(text, f"needs ddp and {' or '.join(strategies)} on equally many ranks, with counted bytes")
    sentence = "; ".join(
        f"{row.label} sends {format_bytes(round(row.figures.sent_bytes or 0))}, {ratio:.2f} x ddp"
        for row, ratio in ratios
    )
    return judged(text, all(holds(ratio) for _, ratio in ratios), sentence)


def _to_ddp(known: ClaimRows, row: ComparedSide) -> float | None:
    ddp = known.like(row, "ddp")
    if ddp is None or ddp.spec.world_size != row.spec.world_size:
        return None
    return ratio(row.figures.sent_bytes, ddp.figures.sent_bytes)


_LESS = "ZeRO-1 and ZeRO-2 communicate no more than data parallelism (2 Psi)"
_MORE = "ZeRO-3 communicates 1.5 x as much as data parallelism (3 Psi)"
_FSDP = "FSDP communicates at most 1.5 x as much as data parallelism"
"""Less where what lies outside the blocks stays gathered after forward, as FSDP2 has it by default."""

BESIDE_DDP = (
    partial(_against_ddp, _LESS, ("zero1", "zero2"), lambda ratio: ratio <= 1 + NEAR),
    partial(_against_ddp, _MORE, ("zero3",), lambda ratio: abs(ratio / 1.5 - 1) <= NEAR),
    partial(_against_ddp, _FSDP, ("fsdp",), lambda ratio: ratio <= 1.5 * (1 + NEAR)),
)
