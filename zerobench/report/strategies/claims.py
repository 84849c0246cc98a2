"""What the notes on distributed training claim, each with the run's own numbers and whether they bear it out.

A claim that the run cannot judge says what is missing. Nothing here is known beforehand but the claims themselves and
how near a number must come.
"""

from collections.abc import Callable

from zerobench.report.strategies import claims_of_bytes, claims_of_memory, claims_of_speed
from zerobench.report.strategies.claim import Claim, ClaimRows, Rows, judged, unjudged


def claims(rows: Rows) -> list[Claim]:
    """Every claim, in the order in which a course would make them."""
    known = ClaimRows(rows)
    return [judge(known) for judge in _CLAIMS]


def exact(known: ClaimRows) -> Claim:
    text = "Exact strategies compute what one process computes"
    held = [row for row in known.rows if row.parity is not None and row.parity.is_judged and not row.figures.is_server]
    if not held:
        return unjudged(text, "no losses to compare")
    far = max(held, key=lambda row: row.parity.difference if row.parity else 0.0)
    agreeing = sum(row.is_believed for row in held)
    difference = far.parity.difference if far.parity else 0.0
    sentence = f"{agreeing} of {len(held)} agree; largest loss difference {difference:.1g} ({far.label})"
    if wrong := [row for row in held if row.parity is not None and not row.parity.norms_agree]:
        factor = 1 + (wrong[0].parity.norm_difference or 0.0 if wrong[0].parity else 0.0)
        sentence += f"; {wrong[0].label} has gradients that differ by a factor of {factor:.2g}"
    return judged(text, agreeing == len(held), sentence)


_CLAIMS: tuple[Callable[[ClaimRows], Claim], ...] = (
    exact,
    claims_of_speed.scales,
    claims_of_memory.data_parallelism_saves_none,
    claims_of_memory.zero_divides,
    claims_of_bytes.all_reduce,
    *claims_of_bytes.BESIDE_DDP,
    claims_of_bytes.server_moves,
    claims_of_memory.server_holds,
    claims_of_speed.asynchronous,
    claims_of_speed.compression,
    claims_of_speed.overlap,
    claims_of_speed.synchronisation,
    claims_of_speed.bubble,
)
