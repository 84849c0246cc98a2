"""A run's documents, and what the ranks of a trial read, are whole before it goes on, whatever an accident left."""

import json
from pathlib import Path

import pytest

from tests.tools.laid_out import laid_out
from zerobench.common.errors import UserError
from zerobench.config.models.presets import resolve_model
from zerobench.config.rules.rules import Skip
from zerobench.config.sweep.expand import PlannedTrial
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.executor import LocalExecutor
from zerobench.launch.run.mending import has_torn_documents, mend_documents, mend_trial
from zerobench.records.folder import RunFolder, TrialFolder
from zerobench.records.store import Run, load_run

EXECUTOR = LocalExecutor(2, 0)
SWAPS = {"optimizer": "cpu_adam", "offload_optimizer": "nvme", "nvme_path": "/nvme"}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """One trial, under DeepSpeed and swapping, so that its config names a folder of its own."""
    trial = TrialSpec.model_validate(
        {"model": resolve_model("llama-20m"), "gpus_per_node": 2, "strategy": "zero3"} | SWAPS
    )
    return load_run(laid_out(tmp_path / "run", [trial]).path)


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
    mend_trial(run, folder.path.name, EXECUTOR)
    assert json.loads(folder.ds_config.read_bytes()) == whole


def test_a_trial_whose_files_are_whole_is_left_as_it_is(run: Run) -> None:
    folder = only(run)
    folder.ds_config.write_text("{}")
    before = {path.name: path.stat().st_mtime_ns for path in folder.path.iterdir()}
    mend_trial(run, folder.path.name, EXECUTOR)
    assert {path.name: path.stat().st_mtime_ns for path in folder.path.iterdir()} == before


def test_a_trial_that_was_not_begun_gets_its_spec_again_and_leaves_nothing_aside(run: Run) -> None:
    folder = only(run)
    whole = json.loads(folder.spec.read_bytes())
    folder.spec.write_text("")
    mend_trial(run, folder.path.name, EXECUTOR)
    assert json.loads(folder.spec.read_bytes()) == whole
    assert not (run.folder.path / "set_aside").exists()


@pytest.fixture
def documents(tmp_path: Path) -> RunFolder:
    """A run of two trials, the second of them skipped, neither begun."""
    trials = [
        TrialSpec.model_validate({"model": resolve_model("llama-20m"), "gpus_per_node": 2, "strategy": strategy})
        for strategy in ("zero1", "zero2")
    ]
    skipped = PlannedTrial(trial=trials[1], skipped=Skip(rule="never", reason="for this test"))
    sweep = {"name": "pair", "description": "two"}
    return laid_out(tmp_path / "pair_20250101-120000", [trials[0], skipped], sweep, {"python": "3.11"})


@pytest.mark.parametrize("name", ["plan.json", "sweep.yaml", "environment.json"])
@pytest.mark.parametrize("text", [b"", b'{"', b"\xff\xfe"])
def test_a_torn_document_is_refused_with_the_way_out_and_written_anew_beside_the_torn_one(
    documents: RunFolder, name: str, text: bytes
) -> None:
    whole = load_run(documents.path)
    assert not has_torn_documents(documents)
    (documents.path / name).write_bytes(text)
    with pytest.raises(UserError, match=rf"{name}: torn or corrupt: .*; to write it anew: zerobench run --resume "):
        load_run(documents.path)
    assert has_torn_documents(documents)
    mend_documents(documents, {"python": "3.12"})
    mended = load_run(documents.path)
    assert mended.plan == whole.plan
    assert mended.sweep == ({"name": "pair"} if name == "sweep.yaml" else whole.sweep)
    assert mended.began_on == {"python": "3.12" if name == "environment.json" else "3.11"}
    assert (documents.path / f"{name}.torn").read_bytes() == text


def test_a_plan_that_nothing_says_any_more_stays_as_it_is(documents: RunFolder) -> None:
    documents.plan.write_text("{")
    documents.asked.unlink()
    with pytest.raises(UserError, match=r"plan\.json: torn or corrupt, and waiting\.jsonl, which it could be made of"):
        mend_documents(documents, {})
    assert documents.plan.read_text() == "{"


def test_a_plan_made_anew_leads_to_no_other_folder(documents: RunFolder) -> None:
    documents.plan.write_text("{")
    documents.asked.write_text(json.dumps({"trial_id": "../elsewhere", "trial": {}, "ds_config": None}) + "\n")
    with pytest.raises(UserError, match="is not one plain name"):
        mend_documents(documents, {})


def test_of_a_users_own_script_nothing_is_written_anew(documents: RunFolder) -> None:
    documents.sweep.write_text("tracked: true\n")
    documents.environment.write_text("")
    with pytest.raises(UserError, match="start the script again with: zerobench watch"):
        load_run(documents.path)
    assert not has_torn_documents(documents)
