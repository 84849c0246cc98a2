"""The one order of views, which the terminal, Markdown and the page read."""

import re
from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from zerobench.records.store import load_run
from zerobench.report.documents import views
from zerobench.report.documents.page import page_html
from zerobench.report.documents.report import markdown_report
from zerobench.report.documents.show import show_run
from zerobench.report.figures.run.runs import run_figures

COMPARED = Path(__file__).parents[1] / "figures" / "strategies" / "records"


def terminal() -> list[str]:
    out = StringIO()
    show_run(COMPARED, Console(file=out, force_terminal=True))
    return re.findall(r"^\x1b\[1m([^\x1b]*)\x1b\[0m$", out.getvalue(), re.MULTILINE)[1:-1]  # between header and summary


def markdown() -> list[str]:
    titles = re.findall(r"^## (.*)", markdown_report(run_figures([load_run(COMPARED)])), re.MULTILINE)
    return titles[: titles.index("Hardware")]


def page() -> list[str]:
    titles = re.findall(r"<h2 [^>]*>(.*)</h2>", page_html(run_figures([load_run(COMPARED)]), figures=[]))
    return titles[1 : titles.index("Environment")]  # behind the contents


TITLES: Mapping[str, Callable[[], list[str]]] = {"terminal": terminal, "Markdown": markdown, "page": page}


@pytest.mark.parametrize("document", TITLES)
def test_how_ways_of_training_compare_comes_first(document: str) -> None:
    assert TITLES[document]()[0] == "Distributed training compared"


@pytest.mark.parametrize("document", TITLES)
def test_the_list_turned_round_turns_each_document_round(document: str, monkeypatch: pytest.MonkeyPatch) -> None:
    titles = TITLES[document]()
    assert len(titles) >= 4
    monkeypatch.setattr(views, "VIEWS", views.VIEWS[::-1])
    assert TITLES[document]() == titles[::-1]
