"""The ladder's table says of each trial what it changed and what that gained, and of what failed how it ended."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_campaign.ladder import changes, main, newest_run, rungs_table
from benchmarks.gpu_campaign.parts import HERE, PARTS
from tests.conftest import Swept
from tests.report.sample_run import completed_trial, failed_trial, spec, write_run
from zerobench.common.errors import UserError
from zerobench.config.derived.machine import Accelerator, Machine
from zerobench.config.sweep.expand import expand
from zerobench.config.sweep.sweep import load_sweep
from zerobench.records.records import Failure
from zerobench.records.store import load_run

TINY = """
name: tiny-ladder
axes:
  model: {family: llama, name: tiny, num_layers: 2, hidden_size: 64, num_heads: 4, vocab_size: 4096}
  strategy: single
  world_size: 1
  sequence_length: 128
  precision: fp32
  attention: eager
exclude: [{strategy: single}]
include:
  - {attention: eager}
  - {attention: sdpa}
  - {attention: sdpa, cross_entropy: chunked}
  - {attention: sdpa, cross_entropy: chunked, micro_batch_size: 4}
steps: {warmup: 1, timed: 2, memory: 1}
"""


def rows(lines: list[str]) -> list[list[str]]:
    """The cells of each trial."""
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines[2:] if line]


def test_each_rung_is_held_against_the_one_before_and_the_first(tmp_path: Path) -> None:
    slow, fast = spec("zero1", attention="eager"), spec("zero1", attention="sdpa")
    large = fast.model_copy(update={"micro_batch_size": 2 * fast.micro_batch_size})
    full = large.model_copy(update={"micro_batch_size": 4 * fast.micro_batch_size})
    failed = failed_trial(full, Failure(message="the device ran out of memory"))
    last = large.model_copy(update={"activation_checkpointing": not large.activation_checkpointing})
    trials = [completed_trial(slow, step_s=0.4), completed_trial(fast, step_s=0.2), completed_trial(large, step_s=0.2)]
    write_run(tmp_path / "run", [*trials, failed, completed_trial(last, step_s=0.8)])
    found = rows(rungs_table(load_run(tmp_path / "run").trials()))
    assert [row[3] for row in found] == ["1.00", "2.00", "2.00", "n/a", "0.25"]
    assert [row[4] for row in found] == ["1.00", "2.00", "4.00", "n/a", "1.00"]
    assert found[1][1] == "attention eager -> sdpa"
    assert found[3][-1].startswith("out_of_device_memory: the device ran out of memory")
    assert found[4][1].startswith("activation_checkpointing")  # of the last that completed


def test_another_model_begins_a_ladder_of_its_own(tmp_path: Path) -> None:
    own = spec("zero1")
    other = own.model_copy(update={"model": own.model.model_copy(update={"name": "other"})})
    write_run(tmp_path / "run", [completed_trial(own), completed_trial(other, step_s=1.0)])
    assert [row[3] for row in rows(rungs_table(load_run(tmp_path / "run").trials()))] == ["1.00", "1.00"]


def test_a_folder_of_runs_gives_the_newest_and_one_of_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match="neither is a run nor holds one"):
        newest_run(tmp_path)
    assert main([str(tmp_path)]) == 2
    assert "RUN" in capsys.readouterr().err
    write_run(tmp_path / "run_1", [completed_trial(spec("zero1"))])
    assert newest_run(tmp_path) == newest_run(tmp_path / "run_1") == tmp_path / "run_1"


def test_each_rung_of_the_campaigns_first_ladder_changes_one_thing() -> None:
    machine = Machine(accelerator=Accelerator.CUDA, num_gpus=1, cpu_cores=16, has_liger=True)
    ladder = [item.trial for item in expand(load_sweep(str(HERE / "ladder.yaml"), [], [], None), machine)]
    climb = [changes(below, spec) for below, spec in itertools.pairwise(ladder[:8])]
    assert climb == [
        "attention eager -> sdpa",
        "optimizer adamw -> fused_adamw",
        "cross_entropy full -> chunked",
        "cross_entropy chunked -> liger",
        "compile none -> blocks",
        "micro_batch_size 1 -> 2",
        "micro_batch_size 2 -> 4",
    ]


@pytest.mark.parametrize("name", ["frontier", "frontier-8", "frontier-64"])
def test_a_frontier_of_the_campaign_is_searched_over_as_many_ranks_as_it_is_named(name: str) -> None:
    argv = next(part.argv for part in PARTS if part.name == name)
    sets = [argv[index + 1] for index, word in enumerate(argv) if word == "--set"]
    sweep = next(word for word in argv if word.endswith(".yaml"))
    machine = Machine(accelerator=Accelerator.CUDA, num_gpus=1, gpu_names=("NVIDIA H200",), cpu_cores=16)
    sizes = {item.trial.world_size for item in expand(load_sweep(sweep, sets, [], None), machine)}
    assert sizes == {int(name.partition("-")[2] or 1)}


def test_a_ladder_on_this_machine_has_its_speeds(
    forked_sweep: Callable[..., Swept], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    swept = forked_sweep(TINY)
    assert swept.exit_code == 0, swept.output
    out = tmp_path / "gains.md"
    assert main([str(swept.run.folder.path), "--out", str(out)]) == 0
    assert out.read_text(encoding="utf-8") == capsys.readouterr().out
    found: list[Any] = rows([line for line in out.read_text(encoding="utf-8").splitlines() if line.startswith("|")])
    assert [row[1].split(" ")[0] for row in found[1:]] == ["attention", "cross_entropy", "micro_batch_size"]
    assert all(float(row[2].replace(",", "")) > 0 for row in found)
