"""Changes of a command are tried until three of them fit."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.app.terminal.test_emulate import account, refused
from zerobench.launch.emulate import tries
from zerobench.launch.emulate.changes import Candidate
from zerobench.launch.emulate.drafts import Draft


@pytest.mark.parametrize(("fits", "played"), [("nynyyyy", 5), ("yyyy", 3), ("nnyn", 4), ("n" * 20, tries.MOST_TRIES)])
def test_changes_are_tried_until_three_fit_or_all_were(monkeypatch: pytest.MonkeyPatch, fits: str, played: int) -> None:
    came = iter([account() if one == "y" else refused() for one in fits])
    monkeypatch.setattr(tries, "play_aside", lambda *_, **__: SimpleNamespace(account=next(came), record=None))
    monkeypatch.setattr(tries, "host_bytes", lambda _: None)
    cluster = SimpleNamespace(gpus_per_node=8, host_memory_bytes=None)
    stage = SimpleNamespace(request=SimpleNamespace(cluster=cluster))
    start = Draft(("python", "train.py"))
    chosen = iter([Candidate((f"change {index}",), start) for index in range(len(fits))])
    found = list(tries._played(stage, start, chosen, 0, lambda _: None, compiled=False))  # type: ignore[arg-type] # all that it reads
    assert [one.fits for one in found] == [one == "y" for one in fits[:played]]


@pytest.mark.parametrize(
    ("zero", "why"),
    [(None, "names no DeepSpeed configuration file"), ({"stage": 2}, "has all states on the GPU already")],
)
def test_states_of_a_script_are_not_said_to_be_on_the_gpu_without_a_file_that_says_so(
    zero: dict[str, int] | None, why: str, tmp_path: Path
) -> None:
    file = tmp_path / "ds.json"
    if zero is not None:
        file.write_text(json.dumps({"zero_optimization": zero}), encoding="utf-8")
    cluster = SimpleNamespace(gpus_per_node=8, host_memory_bytes=None)
    stage = SimpleNamespace(request=SimpleNamespace(command=("deepspeed", "train.py", str(file)), cluster=cluster))
    known = SimpleNamespace(options=(), num_arguments=None, refusal=None, compiles=False, rank=0)
    rank = SimpleNamespace(fits=True, host=None, account=known)
    tried, said = tries.try_changes(stage, SimpleNamespace(ranks=(rank,)), lambda _: None)  # type: ignore[arg-type] # all that it reads
    assert tried == ()
    assert why in (said or "")


@pytest.mark.parametrize(("host_memory_bytes", "fits"), [(40, True), (39, False)])
def test_a_change_needs_a_nodes_memory_for_all_of_its_ranks(
    monkeypatch: pytest.MonkeyPatch, host_memory_bytes: int, fits: bool
) -> None:
    monkeypatch.setattr(tries, "play_aside", lambda *_, **__: SimpleNamespace(account=account(), record=None))
    monkeypatch.setattr(tries, "host_bytes", lambda _: 5)
    cluster = SimpleNamespace(gpus_per_node=8, host_memory_bytes=host_memory_bytes)
    stage = SimpleNamespace(request=SimpleNamespace(cluster=cluster))
    start = Draft(("python", "train.py"))
    [made] = tries._played(stage, start, iter([Candidate(("change",), start)]), 0, lambda _: None, compiled=False)  # type: ignore[arg-type] # all that it reads
    assert (made.host_node_bytes, made.fits) == (40, fits)
