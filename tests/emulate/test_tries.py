"""Changes of a command are tried until three of them fit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.cli.test_emulate import account, refused
from zerobench.emulate import tries
from zerobench.emulate.changes import Candidate
from zerobench.emulate.drafts import Draft


@pytest.mark.parametrize(("fits", "played"), [("nynyyyy", 5), ("yyyy", 3), ("nnyn", 4), ("n" * 20, tries.MOST_TRIES)])
def test_changes_are_tried_until_three_fit_or_all_were(monkeypatch: pytest.MonkeyPatch, fits: str, played: int) -> None:
    came = iter([account() if one == "y" else refused() for one in fits])
    monkeypatch.setattr(tries, "play_aside", lambda *_: SimpleNamespace(account=next(came), record=None))
    monkeypatch.setattr(tries, "host_bytes", lambda _: None)
    cluster = SimpleNamespace(gpus_per_node=8, host_memory_bytes=None)
    stage = SimpleNamespace(request=SimpleNamespace(cluster=cluster))
    start = Draft(("python", "train.py"))
    chosen = iter([Candidate((f"change {index}",), start) for index in range(len(fits))])
    found = list(tries._played(stage, start, chosen, 0, lambda _: None))  # type: ignore[arg-type] # all that it reads
    assert [one.fits for one in found] == [one == "y" for one in fits[:played]]
