"""Views of a run's documents, in the one order that the terminal, Markdown and the page share."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any, TypeVar

from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.batch_ramp import batch_ramp_table
from zerobench.report.tables.checkpoints import checkpoints_table
from zerobench.report.tables.host_parameters import host_parameters_table
from zerobench.report.tables.memory import device_table, host_table, nvme_table, rank_spread_table
from zerobench.report.tables.model import Table
from zerobench.report.tables.model_states import states_table
from zerobench.report.tables.outcomes import outcomes_table
from zerobench.report.tables.parity import parity_table
from zerobench.report.tables.pipeline import pipeline_table
from zerobench.report.tables.server import server_table
from zerobench.report.tables.speed import speed_table
from zerobench.report.tables.standing import standing_table

T = TypeVar("T")


class Document(Flag):
    """Documents that have views."""

    TERMINAL = auto()
    MARKDOWN = auto()
    PAGE = auto()
    TEXTS = TERMINAL | MARKDOWN
    EACH = TEXTS | PAGE


@dataclass(frozen=True)
class View:
    """One piece of a document."""

    key: str
    """Its anchor on the page."""
    documents: Document
    """Those that have it."""
    table: Callable[[Sequence[TrialFigures]], Table[Any]] | None = None
    """None: each document makes it by itself."""


VIEWS: Sequence[View] = (
    View("compared", Document.EACH),
    View("claims", Document.TEXTS),
    View("trials", Document.PAGE),
    View("reasons", Document.PAGE),
    View("memory", Document.TEXTS, device_table),
    View("ranks", Document.TERMINAL, rank_spread_table),
    View("host-memory", Document.TERMINAL, host_table),
    View("nvme", Document.TERMINAL, nvme_table),
    View("host", Document.EACH, host_parameters_table),
    View("predictions", Document.TEXTS),
    View("states", Document.TERMINAL, states_table),
    View("driver", Document.TERMINAL),
    View("speed", Document.TEXTS, speed_table),
    View("batch-ramp", Document.TEXTS, batch_ramp_table),
    View("servers", Document.EACH, server_table),
    View("checkpoints", Document.TEXTS, checkpoints_table),
    View("pipeline", Document.EACH, pipeline_table),
    View("parity", Document.TEXTS, parity_table),
    View("outcomes", Document.EACH, outcomes_table),
    View("stood", Document.EACH, standing_table),
    View("notes", Document.EACH),
)
"""Below the headline: how ways of training compare, the trials' figures, what failed, what to beware of."""


def in_order(
    document: Document, trials: Sequence[TrialFigures], own: Mapping[str, T], show: Callable[[str, Table[Any]], T]
) -> Iterator[T]:
    """The views of `document`: what it made by itself, by key, and of the others the table of `trials`, as `show` sets
    it beside its key.
    """
    for view in VIEWS:
        if document in view.documents:
            yield own[view.key] if view.key in own or view.table is None else show(view.key, view.table(trials))
