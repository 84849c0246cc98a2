"""overhead.py runs, both sides under the launcher and the sampler too; what figures come out is not tested."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks import launches, overhead, watched_runs
from tests.tools import forked_zerobench
from zerobench.config.models.parameters import count_parameters
from zerobench.config.models.presets import resolve_model
from zerobench.launch.run import launcher

ROOT = Path(__file__).resolve().parent.parent.parent
FEWEST = ["--pairs", "1", "--steps", "1", "--blocks", "1", "--block-steps", "1", "--strategies", "zero3"]
FEWEST += ["--precision", "fp32"]  # some processors multiply bf16 60 times slower
MODEL = resolve_model({"family": "llama", "num_layers": 2, "hidden_size": 64, "num_heads": 4, "vocab_size": 512})


@pytest.mark.slow
def test_both_sides_train_the_same_model_and_the_sampler_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked_ranks: Mapping[str, str]
) -> None:
    """The sampler's launch is DeepSpeed's own, since its ranks load the stand-in driver; elsewhere they are forks."""
    out, config = tmp_path / "overhead.json", tmp_path / "config.json"
    config.write_text(json.dumps(MODEL.hf_config), encoding="utf-8")
    forked = forked_zerobench.LAUNCHER
    programs = iter([forked, forked, launcher.deepspeed_program()])
    monkeypatch.setattr(launches, "deepspeed_program", lambda: next(programs, forked))
    monkeypatch.setattr(launcher, "deepspeed_program", lambda: forked)
    monkeypatch.setattr(watched_runs, "ZEROBENCH", forked_zerobench.__name__)
    for name, value in forked_ranks.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["overhead.py", *FEWEST, "--model", str(config), "--out", str(out)])
    overhead.main()
    assert next(programs, None) is None
    raw = json.loads(out.read_text(encoding="utf-8"))
    bare, ours = raw["launches"]
    counted = count_parameters(MODEL)
    assert counted is not None
    assert (bare["side"], ours["side"]) == ("bare", "zerobench")
    assert bare["num_params"] == ours["num_params"] == counted.total
    assert bare["num_timed"] == ours["num_timed"] == 1
    assert bare["tracked_s"] == 0.0 < ours["tracked_s"]
    for one in (bare, ours):
        spent = sum(one[name] for name in ("start_s", "build_s", "tracked_s", "untimed_s", "timed_s"))
        assert 0 < spent < one["wall_s"]
    (told,) = raw["sampler"]["summaries"]
    assert told["num_samples"] > 2 * len(told["devices"]) > 0
    if raw["sampler"]["standin"]:
        assert (len(told["devices"]), len(told["not_sampled"])) == (2, 6)
    assert 0 < raw["sampler"]["cores"][0] < 1
    (on_s,), (off_s,), (rows,) = (raw["ledger"][name] for name in ("on_s", "off_s", "rows"))
    assert off_s > 0
    assert on_s > 0
    assert rows > 10
    live, piped = raw["watched"]
    assert (live["view"], piped["view"]) == ("live", "piped")
    assert min(live["timed_s"], piped["timed_s"]) > 0
    assert live["printed_bytes"] > piped["printed_bytes"] > 0  # a screen is painted again and again


def test_a_part_that_does_not_exist_is_refused_with_the_choices() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "overhead.py"), "--only", "a,f"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("argument --only: a,f; choices: a, b, c, d, e")
