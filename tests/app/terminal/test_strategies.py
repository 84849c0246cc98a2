"""`zerobench strategies`: what each is and needs, and whether it can run here, in 80 columns."""

import json
from pathlib import Path

import pytest

from tests.app.terminal.conftest import Call
from zerobench.app.terminal.strategies import strategy_topic
from zerobench.common.environments import VARIABLE
from zerobench.config.derived.machine import Accelerator, Machine
from zerobench.config.derived.strategy import STRATEGIES, StrategyInfo
from zerobench.config.trial.optimizers import OPTIMIZERS
from zerobench.config.trial.trial import Evidence
from zerobench.report.explain.topic import as_text

CPU = Machine(accelerator=Accelerator.CPU, cpu_cores=2)


def test_every_strategy_is_listed_in_80_columns_with_what_it_needs_and_that_it_runs_here(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    code, out, err = call("strategies", "--details")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.partition(":")[0] for line in lines if line[:1].strip()] == [*STRATEGIES, *OPTIMIZERS]
    own = [info.environment for info in STRATEGIES.values() if info.environment]
    assert out.count("here: yes") == len(STRATEGIES) - len(own)
    for name in own:
        assert f"here: no: its environment is not set up (zerobench setup {name})" in " ".join(out.split())
    assert "its own axes: bucket_bytes, compression" in out


def test_on_80_by_24_each_has_a_line_and_those_that_cannot_run_here_their_reason(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = call("strategies")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert (len(lines) < 24, max(map(len, lines)) <= 80) == (True, True)
    assert [line.split()[0] for line in lines[: len(STRATEGIES)]] == [*STRATEGIES]
    assert [line for line in lines if line.endswith("...")] == []
    words = " ".join(out.split())
    for info in STRATEGIES.values():
        if info.environment:
            assert f"{info.name} not here: its environment is not set up" in words
    assert all(f"{info.name} {info.state_bytes:.3g}" in words for info in OPTIMIZERS.values())


@pytest.mark.parametrize(("name", "fact"), [("zero3", "zero_init"), ("lion", "4 bytes per parameter")])
def test_a_named_one_is_told_whole_and_alone(call: Call, name: str, fact: str) -> None:
    _, out, _ = call("strategies", name)
    assert fact in out
    assert [line.partition(":")[0] for line in out.splitlines() if not line.startswith(" ")] == [name]
    document = json.loads(call("strategies", name, "--json")[1])
    listed = [one["strategy"] for one in document["strategies"]] + [one["optimizer"] for one in document["optimizers"]]
    assert listed == [name]
    code, out, err = call("strategies", f"{name}x")
    assert (code, out) == (2, "")
    assert f"NAME: '{name}x' is not known; did you mean" in err


def test_one_that_cannot_run_here_says_why_and_in_which_worlds_it_cannot_be() -> None:
    info = StrategyInfo(
        name="far",
        summary="a strategy of the future",
        needs_gpu=True,
        evidences=(Evidence.MEASURED,),
        unavailable={Evidence.SOLO: "its ranks speak to each other"},
        fixed_batch="its schedule is made once",
        exact=False,
        tolerance_reason="stale weights",
    )
    text = as_text([strategy_topic(info, CPU)])
    assert "here: no: needs a GPU" in text
    assert "not solo: its ranks speak to each other" in text
    assert "no batch_ramp: its schedule is made once" in text
    assert "losses: not those of single: stale weights" in text
