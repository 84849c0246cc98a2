"""Claims about the memory of model states."""

from zerobench.report.paper import PaperTerms, paper_terms
from zerobench.report.strategies.claim import NEAR, Claim, ClaimRows, is_near, judged, unjudged
from zerobench.report.strategies.rows import ComparedSide
from zerobench.units import format_bytes


def data_parallelism_saves_none(known: ClaimRows) -> Claim:
    text = "Data parallelism saves no memory of model states"
    ddp = known.row_of("ddp")
    single = next((row for row in known.workers if row.is_reference), None)
    if ddp is None or single is None or not ddp.figures.states_bytes or not single.figures.states_bytes:
        return unjudged(text, "needs trials of ddp on several ranks and of single, with memory")
    ratio = ddp.figures.states_bytes / single.figures.states_bytes
    sentence = (
        f"{ddp.label} holds {format_bytes(ddp.figures.states_bytes)} per rank, the single process "
        f"{format_bytes(single.figures.states_bytes)}"
    )
    return judged(text, ratio >= 1 - NEAR, sentence)


def zero_divides(known: ClaimRows) -> Claim:
    """Each state by itself, since one that is larger and one that is smaller may hide each other in the sum."""
    text = "ZeRO stages partition optimizer states, then gradients, then parameters"
    stages = [row for row in known.of("zero1", "zero2", "zero3", "fsdp") if row.figures.states is not None]
    pairs = [(row, paper) for row in stages if (paper := paper_terms(row.spec, row.figures.num_params)) is not None]
    if not pairs:
        return unjudged(text, "needs a trial of zero1 to zero3 or fsdp on several ranks, with memory")
    sentence = "; ".join(_beside_paper(row, paper) for row, paper in pairs)
    return judged(text, not any(_departing(row, paper) for row, paper in pairs), sentence)


def _beside_paper(row: ComparedSide, paper: PaperTerms) -> str:
    departing = _departing(row, paper)
    parts = f" ({', '.join(departing)})" if departing else ""
    whole = f"{row.label} holds {format_bytes(row.figures.states_bytes or 0)} per rank"
    return f"{whole} where the paper says {format_bytes(round(paper.total_bytes))}{parts}"


def _departing(row: ComparedSide, paper: PaperTerms) -> list[str]:
    """The states that are not what the paper says, with both figures."""
    departures = []
    for name, words in _STATES.items():
        held: int = getattr(row.figures.states, name)
        claimed: float = getattr(paper, name)
        if held != claimed and not is_near(held, claimed):
            departures.append(f"{words} {format_bytes(held)} instead of {format_bytes(round(claimed))}")
    return departures


_STATES = {
    "parameters_bytes": "parameters",
    "gradients_bytes": "gradients at the end of backward",
    "optimizer_bytes": "optimizer states",
}


def server_holds(known: ClaimRows) -> Claim:
    text = "A parameter server frees its workers of optimizer states, but saves none itself"
    sides = [row for row in known.rows if row.spec.strategy == "parameter-server" and row.saved_fraction is not None]
    server = next((row for row in sides if row.figures.is_server), None)
    worker = next((row for row in sides if not row.figures.is_server), None)
    if server is None or worker is None:
        return unjudged(text, "needs trials of parameter-server and ddp, with memory")
    sentence = "; ".join(
        f"{who} holds {format_bytes(row.figures.states_bytes or 0)}, {_saving(row)}"
        for who, row in (("a worker", worker), ("the server", server))
    )
    optimizer = worker.figures.states.optimizer_bytes if worker.figures.states else 0
    return judged(text, optimizer == 0 and abs(server.saved_fraction or 0) <= NEAR, sentence)


def _saving(row: ComparedSide) -> str:
    saved = row.saved_fraction or 0.0
    if abs(saved) < 0.005:
        return "as much as a rank of ddp"
    return f"{abs(100 * saved):.0f}% {'less' if saved > 0 else 'more'} than a rank of ddp"
