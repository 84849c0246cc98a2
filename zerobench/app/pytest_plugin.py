"""A pytest plugin: the memory that a test declares may grow by no more than its marker allows.

    @pytest.mark.zerobench_memory("2%")
    def test_the_fine_tune_takes_no_more(zerobench_memory):
        zerobench_memory(zerobench.predict("llama-7b", "ds_config.json", gpus=8, gpu="h100", host_memory="1TB"))

What it may grow from is kept in `zerobench_memory.json` beside the test, which `pytest --zerobench-update` writes. A
limit is a share (`2%`) or a size (`100MiB`). Bytes of one's own, by any names, do as well as a prediction.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from zerobench.app.api import Prediction

KEPT = "zerobench_memory.json"
MARKER = "zerobench_memory"
_UPDATE = "--zerobench-update"

Sizes = dict[str, int]
Declare = Callable[["Prediction | Mapping[str, int]"], None]
"""Type of the fixture: takes a prediction, or bytes by name, and judges their sum."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that keeps what tests declare."""
    parser.addoption(_UPDATE, action="store_true", help=f"Store the memory that tests declare in {KEPT}.")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker. Raises UsageError: several processes would write one file."""
    config.addinivalue_line("markers", f"{MARKER}(limit): memory may grow by this at most, 2% or 100MiB")
    if config.getoption(_UPDATE) and hasattr(config, "workerinput"):
        raise pytest.UsageError(f"{_UPDATE}: takes one process; leave -n out")


@pytest.fixture
def zerobench_memory(request: pytest.FixtureRequest) -> Declare:
    """Hold the memory that a test declares against what was kept of it."""
    marker = request.node.get_closest_marker(MARKER)
    if marker is None or len(marker.args) != 1:
        pytest.fail(f'@pytest.mark.{MARKER}("2%") is missing: the allowed growth of memory', pytrace=False)
    path, name = Path(request.path).parent / KEPT, f"{request.path.name}::{request.node.name}"

    def declare(measured: Prediction | Mapping[str, int]) -> None:
        sizes = dict(measured) if isinstance(measured, Mapping) else _sizes(measured)
        if request.config.getoption(_UPDATE):
            _keep(path, name, sizes)
        else:
            _judge(_read(path).get(name), sizes, str(marker.args[0]))

    return declare


def _sizes(prediction: Prediction) -> Sizes:
    """By category at the peak, and what a GPU needs beside that."""
    if prediction.needed_bytes is None:
        pytest.fail(f"{prediction.name}: memory need unknown", pytrace=False)
    categories = prediction.by_category
    return {**categories, "beside the peak of a steady step": prediction.needed_bytes - sum(categories.values())}


def _read(path: Path) -> dict[str, Sizes]:
    kept: dict[str, Sizes] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return kept


def _keep(path: Path, name: str, sizes: Sizes) -> None:
    from zerobench.records.folder import write_whole  # noqa: PLC0415 -- pytest starts without the suite

    write_whole(path, json.dumps(_read(path) | {name: sizes}, indent=1, sort_keys=True) + "\n")


def _judge(kept: Sizes | None, sizes: Sizes, written: str) -> None:
    from zerobench.common.errors import UserError  # noqa: PLC0415 -- as above
    from zerobench.common.units import format_bytes  # noqa: PLC0415 -- as above
    from zerobench.report.tables.gate import parse_limits  # noqa: PLC0415 -- as above

    try:
        [limit] = parse_limits(f"memory:{written}")
    except (UserError, ValueError) as error:
        pytest.fail(f"{MARKER}({written!r}): {error}", pytrace=False)
    if kept is None:
        pytest.fail(f"no stored value for this test in {KEPT}: pytest {_UPDATE}", pytrace=False)
    before, now = sum(kept.values()), sum(sizes.values())
    if limit.is_beyond(now - before, before):
        grown = {name: sizes.get(name, 0) - kept.get(name, 0) for name in {**kept, **sizes}}
        most = sorted(((more, name) for name, more in grown.items() if more > 0), reverse=True)
        parts = ", ".join(f"{name} +{format_bytes(more)}" for more, name in most[:5])
        pytest.fail(f"{format_bytes(before)} to {format_bytes(now)}, more than {written}: {parts}", pytrace=False)
