"""Whatever stands in a record, a report prints or says in one line what is wrong."""

import io
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.report.sample_run import completed_trial, failed_trial, spec, write_run
from zerobench.common.errors import UserError
from zerobench.records.records import Failure
from zerobench.records.store import load_run
from zerobench.report.documents.show import show_run
from zerobench.report.export.tidy_tables import write_tables

ODD_VALUES: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**63, 10**400, -(10**400), 0.0, -0.5, 1e308, 5e-324, "NaN", "Infinity", "-Infinity",
    "", "[bold]", "\x1b[2J", "\ud800", "first", "device", "total", "completed", [], {}, [0], {"a": 1},
]  # fmt: skip


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three trials, two of them with two ranks."""
    path = tmp_path_factory.mktemp("intact") / "run"
    offload = {"offload_optimizer": "nvme", "nvme_path": "/nvme"}
    trials = [
        completed_trial(spec("zero1", gpus_per_node=2)),
        completed_trial(spec("zero3", gpus_per_node=2, **offload)),
    ]
    write_run(path, [*trials, failed_trial(spec("zero0"), Failure(message="died"))])
    return path


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a JSON document."""
    inside = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    return [(value, key) for key, _ in inside] + [place for _, child in inside for place in places(child)]


def spoil(run: Path, seed: int, odd: Any) -> str:
    """Put `odd` in the place of one value of one document of the run."""
    choice = random.Random(seed)  # noqa: S311 -- which value is spoiled needs no secrecy
    file = choice.choice(sorted(run.rglob("*.json")))
    document = json.loads(file.read_text())
    # A rank has hundreds of memory rows: choosing the key first gives each kind of value its turn.
    found = places(document)
    key = choice.choice(sorted({str(key) for _, key in found}))
    container, key = choice.choice([place for place in found if str(place[1]) == key])
    container[key] = odd
    file.write_text(json.dumps(document))
    return f"{file.name}: {key}"


def refusal(report: Callable[[], object]) -> str:
    """What the report refuses to show, empty where it shows all."""
    try:
        report()
    except UserError as error:
        return str(error)
    return ""


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), odd=st.sampled_from(ODD_VALUES))
def test_a_spoilt_record_is_shown_or_refused_in_one_line(intact: Path, tmp_path: Path, seed: int, odd: Any) -> None:
    run = tmp_path / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(intact, run)
    spoil(run, seed, odd)
    console = Console(width=80, file=io.StringIO())
    assert refusal(lambda: show_run(run, console)).isprintable()
    assert refusal(lambda: write_tables(load_run(run))).isprintable()
