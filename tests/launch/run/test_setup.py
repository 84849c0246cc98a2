"""A run that is laid out without its trials' folders is the same run: each gets its folder when it begins."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tools.at_least_one import at_least_one
from tests.tools.laid_out import laid_out
from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Status
from zerobench.config.models.presets import resolve_model
from zerobench.config.rules.rules import Skip
from zerobench.config.sweep.expand import PlannedTrial
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.executor import LocalExecutor
from zerobench.launch.run.observer import Observer
from zerobench.launch.run.runner import resume_run
from zerobench.launch.run.setup import (
    lay_out,
    make_folder,
    new_run_folder,
    refuse_secrets,
    renew_swap_folder,
    resolved_configs,
)
from zerobench.records.folder import RunFolder, TrialFolder
from zerobench.records.store import load_run
from zerobench.records.swap_folder import swap_folder

SECRET = "hunter2hunter2"  # noqa: S105 -- one that is made up
URL = f"https://me:{SECRET}@example.org/logs"


def trial(**fields: Any) -> TrialSpec:
    work = {"model": resolve_model("llama-20m"), "strategy": "zero2", "gpus_per_node": 2, "evidence": "formula"}
    return TrialSpec.model_validate(work | fields)


def run_of(tmp_path: Path, one: TrialSpec, **sweep: Any) -> RunFolder:
    plan = [PlannedTrial(trial=one)]
    configs = resolved_configs(plan)
    run = new_run_folder(tmp_path, sweep.get("name", "a sweep"))
    lay_out(run, plan, configs, sweep, {})
    return run


def test_a_description_and_a_name_are_kept_without_their_secrets(tmp_path: Path) -> None:
    run = run_of(tmp_path, trial(), description=f"as on {URL}", axes={"model": "llama-20m"}, name=f"see {URL}")
    kept = {path: path.read_text() for path in run.path.rglob("*") if path.is_file()}
    assert [str(path) for path, text in kept.items() if SECRET in text or SECRET in str(path)] == []
    assert "as on https://[REDACTED]@example.org/logs" in kept[run.sweep]


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"ds_config": {"tensorboard.output_path": URL}}, r"ds_config\.tensorboard\.output_path"),
        ({"nvme_path": URL}, "nvme_path"),
        ({"data": {"kind": "tokens", "path": f"/data/hf_{'aB3' * 8}/tokens.bin"}}, r"data\.path"),
    ],
)
def test_a_secret_that_a_trial_needs_as_it_stands_is_refused_before_anything_is_written(
    tmp_path: Path, fields: dict[str, Any], place: str
) -> None:
    with pytest.raises(UserError, match=rf"^{place}: looks like a secret[^\n]*$") as refusal:
        run_of(tmp_path, trial(**fields))
    assert SECRET not in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


def test_a_secret_in_the_deepspeed_config_of_a_trial_is_refused() -> None:
    config = {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": URL}}}
    refusal = r"^ds_config\.zero_optimization\.offload_param\.nvme_path: looks like a secret"
    with pytest.raises(UserError, match=refusal):
        refuse_secrets(trial(strategy="zero3"), config)


def test_a_secret_that_no_trial_reads_is_kept_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    own = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}, "wandb": {"enabled": False, "team": URL}}
    file.write_text(json.dumps(own))
    planned = PlannedTrial(trial=trial(ds_config_file=str(file)))
    assert URL not in json.dumps(resolved_configs([planned]))


def test_names_in_a_model_s_config_and_ordinary_paths_are_no_secrets() -> None:
    words = {"eos_token": "<|endoftext|>", "_name_or_path": "/hub/models--a--b/snapshots/" + "0a" * 20}
    model = resolve_model("llama-20m")
    model = model.model_copy(update={"hf_config": {**(model.hf_config or {}), **words}})
    refuse_secrets(trial(model=model, nvme_path="/mnt/nvme0/pat@swap", ds_config_file="/home/me/keys/ds.json"), {})


SKIP = Skip(rule="too_many_ranks", reason="8 ranks on 2 devices")


def planned() -> list[PlannedTrial]:
    work = {"model": resolve_model("llama-20m"), "gpus_per_node": 2, "evidence": "formula"}
    trials = [TrialSpec.model_validate(work | {"strategy": name}) for name in ("single", "zero1", "zero3")]
    return [PlannedTrial(trial=trials[0]), PlannedTrial(trial=trials[1]), PlannedTrial(trial=trials[2], skipped=SKIP)]


def both(path: Path) -> Iterator[RunFolder]:
    """The same run with all folders, and with those of skipped trials alone."""
    return (laid_out(path / str(makes), planned(), make_folders=makes) for makes in (True, False))


def test_without_folders_the_trials_are_asked_the_same_and_only_skipped_ones_have_a_folder(tmp_path: Path) -> None:
    at_once, waiting = both(tmp_path)
    ids = [item.trial.trial_id for item in planned()]
    assert [load_run(waiting.path).spec(one) for one in ids] == [load_run(at_once.path).spec(one) for one in ids]
    assert [path.name for path in waiting.trials.iterdir()] == ids[2:]


def test_a_folder_that_is_made_later_holds_what_it_would_have_held(tmp_path: Path) -> None:
    at_once, waiting = both(tmp_path)
    run = load_run(waiting.path)
    for item in at_least_one(planned()):
        make_folder(run, item.trial.trial_id)
        one, other = (folder.trial(item.trial.trial_id) for folder in (at_once, waiting))
        assert json.loads(other.spec.read_bytes()) == json.loads(one.spec.read_bytes())
        assert other.ds_config.exists() == one.ds_config.exists()
        if one.ds_config.exists():
            assert json.loads(other.ds_config.read_bytes()) == json.loads(one.ds_config.read_bytes())


def test_a_folder_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    run = load_run(laid_out(tmp_path / "a", planned(), make_folders=False).path)
    trial_id = planned()[1].trial.trial_id
    make_folder(run, trial_id)
    run.folder.trial(trial_id).ds_config.write_text("{}")
    make_folder(run, trial_id)
    assert run.folder.trial(trial_id).ds_config.read_text() == "{}"


def test_such_a_run_is_gone_on_with_on_this_machine_too(tmp_path: Path) -> None:
    folder = laid_out(tmp_path / "a", planned(), make_folders=False)
    result = resume_run(folder.path, environment={}, executor=LocalExecutor(1, 0), observer=Observer())
    assert result.exit_code == 0
    statuses = [trial.record.status for trial in load_run(folder.path).trials()]
    assert statuses == [Status.COMPLETED, Status.COMPLETED, Status.SKIPPED]


def test_a_torn_list_of_waiting_trials_is_one_line(tmp_path: Path) -> None:
    folder = laid_out(tmp_path / "a", planned(), make_folders=False)
    folder.asked.write_bytes(folder.asked.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"waiting.jsonl: torn or corrupt"):
        load_run(folder.path).spec(planned()[0].trial.trial_id)


def swapping(path: Path, *, make_folders: bool) -> tuple[RunFolder, TrialSpec]:
    work = {"strategy": "zero3", "optimizer": "cpu_adam", "offload_optimizer": "nvme", "nvme_path": "/nvme"}
    trial = TrialSpec.model_validate({"model": resolve_model("llama-20m"), "gpus_per_node": 2} | work)
    run = laid_out(path, [trial], make_folders=make_folders)
    make_folder(load_run(path), trial.trial_id)
    return run, trial


def swaps_to(folder: TrialFolder) -> str:
    path: str = json.loads(folder.ds_config.read_bytes())["zero_optimization"]["offload_optimizer"]["nvme_path"]
    return path


@pytest.mark.parametrize("make_folders", [True, False])
def test_each_run_of_a_trial_swaps_into_a_folder_of_its_own(tmp_path: Path, make_folders: bool) -> None:
    run, trial = swapping(tmp_path / "a", make_folders=make_folders)
    other, _ = swapping(tmp_path / "b", make_folders=make_folders)
    folder = run.trial(trial.trial_id)
    assert swaps_to(folder) == swap_folder(trial, folder) != swaps_to(other.trial(trial.trial_id))
    assert Path(swaps_to(folder)).parts[:2] == ("/", "nvme")


def test_a_run_that_was_moved_swaps_where_it_then_cleans_up(tmp_path: Path) -> None:
    run, trial = swapping(tmp_path / "a", make_folders=True)
    moved = RunFolder(run.path.rename(tmp_path / "moved")).trial(trial.trial_id)
    renew_swap_folder(trial, moved)
    assert swaps_to(moved) == swap_folder(trial, moved)
