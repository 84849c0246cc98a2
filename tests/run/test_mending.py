"""What the ranks of a trial read is whole before they start, whatever an accident left of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zerobench.folder import RunFolder, TrialFolder
from zerobench.run.mending import mend_trial
from zerobench.run.setup import lay_out, resolved_configs
from zerobench.run.site import LocalSite
from zerobench.spec.expand import PlannedTrial
from zerobench.spec.presets import resolve_model
from zerobench.spec.trial import TrialSpec
from zerobench.store import Run, load_run

SITE = LocalSite(2, 0)
SWAPS = {"optimizer": "cpu_adam", "offload_optimizer": "nvme", "nvme_path": "/nvme"}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """One trial, under DeepSpeed and swapping, so that its config names a folder of its own."""
    trial = TrialSpec.model_validate(
        {"model": resolve_model("llama-20m"), "gpus_per_node": 2, "strategy": "zero3"} | SWAPS
    )
    planned = [PlannedTrial(trial=trial)]
    (tmp_path / "run").mkdir()
    lay_out(RunFolder(tmp_path / "run"), planned, resolved_configs(planned), {"name": "one"}, {})
    return load_run(tmp_path / "run")


def only(run: Run) -> TrialFolder:
    return run.folder.trial(run.plan.trials[0].trial_id)


@pytest.mark.parametrize("text", ["", '{"zero_optimization": {'])
@pytest.mark.parametrize("has_list", [True, False])
def test_a_torn_deepspeed_config_is_made_again_as_it_was(run: Run, text: str, has_list: bool) -> None:
    folder = only(run)
    whole = json.loads(folder.ds_config.read_bytes())
    folder.ds_config.write_text(text)
    if not has_list:
        run.folder.asked.unlink()
    mend_trial(run, folder.path.name, SITE)
    assert json.loads(folder.ds_config.read_bytes()) == whole


def test_a_trial_whose_files_are_whole_is_left_as_it_is(run: Run) -> None:
    folder = only(run)
    folder.ds_config.write_text("{}")
    before = {path.name: path.stat().st_mtime_ns for path in folder.path.iterdir()}
    mend_trial(run, folder.path.name, SITE)
    assert {path.name: path.stat().st_mtime_ns for path in folder.path.iterdir()} == before


def test_a_trial_that_was_not_begun_gets_its_spec_again_and_leaves_nothing_aside(run: Run) -> None:
    folder = only(run)
    whole = json.loads(folder.spec.read_bytes())
    folder.spec.write_text("")
    mend_trial(run, folder.path.name, SITE)
    assert json.loads(folder.spec.read_bytes()) == whole
    assert not (run.folder.path / "set_aside").exists()
