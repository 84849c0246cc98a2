"""A run is read back strictly, lazily and whatever older version wrote it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tools.rank_records import rank_record, trial_record
from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Status
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.records import store
from zerobench.records.folder import RunFolder
from zerobench.records.records import SCHEMA_VERSION, RankRecord, StepTime, TrialRecord
from zerobench.records.store import Plan, PlanEntry, find_run, latest_run, load_run, read_json, read_record

MODEL = ModelSpec(name="small", hf_config={"model_type": "gpt2"})


def trial_spec(repeat: int) -> TrialSpec:
    return TrialSpec(model=MODEL, strategy="zero2", gpus_per_node=2, repeat=repeat)


def completed_rank(trial_id: str, rank: int, **fields: Any) -> RankRecord:
    return rank_record(trial_id, rank, world_size=2, pid=7, status=Status.COMPLETED, **fields)


def make_run(path: Path, *, ended: int = 2, planned: int = 3) -> RunFolder:
    """A run of `planned` trials, of which `ended` have ended, two ranks each."""
    run = RunFolder(path)
    run.path.mkdir(parents=True)
    specs = [trial_spec(repeat) for repeat in range(planned)]
    entries = [PlanEntry(trial_id=spec.trial_id) for spec in specs]
    run.plan.write_text(Plan(run_id=path.name, trials=entries).model_dump_json())
    run.sweep.write_text("name: small\naxes: {model: small}\n")
    run.environment.write_text('{"python": "3.11"}')
    for number, spec in enumerate(specs):
        folder = run.trial(spec.trial_id)
        folder.path.mkdir(parents=True)
        folder.spec.write_text(spec.model_dump_json())
        if number < ended:
            for rank in range(2):
                folder.rank_record(rank).write_text(completed_rank(spec.trial_id, rank).model_dump_json())
            folder.record.write_text(trial_record(run.run_id, spec, ranks_reported=2).model_dump_json())
    return run


def change(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return make_run(tmp_path / "small_20250101-120000")


def test_a_run_is_read_back_as_it_was_written(run: RunFolder) -> None:
    found = load_run(run.path)
    assert found.run_id == "small_20250101-120000"
    assert found.sweep == {"name": "small", "axes": {"model": "small"}}
    assert found.environment == {"python": "3.11"}
    trials = list(found.trials())
    assert [trial.spec for trial in trials] == [trial_spec(0), trial_spec(1)]
    assert [[rank.rank for rank in trial.ranks] for trial in trials] == [[0, 1], [0, 1]]
    assert found.pending() == [trial_spec(2).trial_id]


def test_specs_of_a_run_share_what_they_have_alike_and_go_their_ways_when_copied(run: RunFolder) -> None:
    """Ten thousand of them are held at once, for their names; a copy that says more must not change the others."""
    found = load_run(run.path)
    one, other = (found.spec(trial_spec(repeat).trial_id) for repeat in range(2))
    assert one.model is other.model
    assert one.model_fields_set is other.model_fields_set
    given = set(other.model_fields_set)
    change(run.trial(trial_spec(2).trial_id).spec, lambda document: document.pop("repeat"))
    assert found.spec(trial_spec(2).trial_id).model_fields_set == given - {"repeat"}
    one.model_copy(update={"evidence": Evidence.SOLO, "own": None}).model_fields_set.add("nothing")
    assert other.model_fields_set == given


def test_trials_are_read_only_when_their_turn_comes(run: RunFolder) -> None:
    run.trial(trial_spec(1).trial_id).record.write_text('{"schema_version": 1, "run')
    trials = load_run(run.path).trials()
    assert next(trials).spec == trial_spec(0)
    with pytest.raises(UserError, match="torn or corrupt"):
        next(trials)


def test_a_plan_of_a_hundred_thousand_trials_is_read_in_seconds(tmp_path: Path) -> None:
    run = make_run(tmp_path / "large", ended=1, planned=1)
    [first] = load_run(run.path).plan.trials
    others = [PlanEntry(trial_id=f"trial-{number}", rule="a_rule", reason="a reason") for number in range(100_000)]
    run.plan.write_text(Plan(run_id="large", trials=[first, *others]).model_dump_json())
    before = time.process_time()
    assert next(load_run(run.path).trials()).record.status is Status.COMPLETED
    assert time.process_time() - before < 10


@pytest.mark.parametrize("name", ["plan.json", "environment.json", "sweep.yaml"])
@pytest.mark.parametrize("text", ["", "{", '"a text"', "[1, 2", "\x00"])
def test_a_torn_document_of_the_run_is_an_error_that_names_it(run: RunFolder, name: str, text: str) -> None:
    (run.path / name).write_text(text)
    with pytest.raises(UserError, match=rf"{name}: torn or corrupt"):
        load_run(run.path)


def test_a_sweep_that_unfolds_into_millions_of_values_is_refused_at_once(run: RunFolder) -> None:
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 10)]
    run.sweep.write_text("\n".join(lines))
    before = time.process_time()
    with pytest.raises(
        UserError,
        match=r"sweep\.yaml: torn or corrupt: more than 20000 values; to write it anew: zerobench run --resume ",
    ):
        load_run(run.path)
    assert time.process_time() - before < 2


@pytest.mark.parametrize("name", ["record.json", "rank_1.json", "trial.json"])
def test_a_torn_record_is_an_error_that_names_it(run: RunFolder, name: str) -> None:
    path = run.trial(trial_spec(0).trial_id).path / name
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=rf"{name}: torn or corrupt"):
        list(load_run(run.path).trials())


@pytest.mark.parametrize("name", ["record.json", "rank_0.json", "../../plan.json"])
def test_a_record_of_a_newer_version_is_an_error_that_names_it(run: RunFolder, name: str) -> None:
    path = run.trial(trial_spec(0).trial_id).path / name
    change(path, lambda document: document.update(schema_version=SCHEMA_VERSION + 1, something_new=1))
    with pytest.raises(UserError, match=rf"{path.name}: schema_version: 2 is newer .* upgrade zerobench$"):
        list(load_run(run.path).trials())


@pytest.mark.parametrize("version", [None, "1", 1.0, True, 0, -3, [1]])
def test_a_schema_version_that_never_was_is_an_error(run: RunFolder, version: object) -> None:
    path = run.trial(trial_spec(0).trial_id).record
    change(path, lambda document: document.update(schema_version=version))
    with pytest.raises(UserError, match=r"record\.json: schema_version: "):
        list(load_run(run.path).trials())


def test_a_field_that_nobody_knows_is_an_error_that_names_it(run: RunFolder) -> None:
    path = run.trial(trial_spec(0).trial_id).record
    change(path, lambda document: document.update(ranks_expcted=2))
    with pytest.raises(UserError, match="ranks_expcted: unknown field; did you mean 'ranks_expected'"):
        list(load_run(run.path).trials())


def test_a_lost_rank_record_is_an_error_that_names_it(run: RunFolder) -> None:
    run.trial(trial_spec(0).trial_id).rank_record(1).unlink()
    with pytest.raises(UserError, match=r"1 of 2 rank records left; missing among: rank_1\.json"):
        list(load_run(run.path).trials())


def test_a_record_copied_from_another_trial_is_an_error(run: RunFolder) -> None:
    first, second = (run.trial(trial_spec(repeat).trial_id) for repeat in range(2))
    second.rank_record(0).write_bytes(first.rank_record(0).read_bytes())
    with pytest.raises(UserError, match="does not belong in folder"):
        list(load_run(run.path).trials())


ELSEWHERE = ("../../outside", "/etc", "..", ".", "", "a/b", "a\x00b", "a\n")


@pytest.mark.parametrize("name", [*ELSEWHERE, "two words", ".hidden"])
def test_a_plan_whose_trials_lead_elsewhere_is_refused(run: RunFolder, name: str) -> None:
    change(run.plan, lambda plan: plan["trials"][1].update(trial_id=name))
    with pytest.raises(UserError, match=r"plan\.json: trials\.1\.trial_id: is not one plain name[^\n]*$"):
        load_run(run.path)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_plan_whose_run_is_elsewhere_is_refused(run: RunFolder, name: str) -> None:
    change(run.plan, lambda plan: plan.update(run_id=name))
    with pytest.raises(UserError, match=r"plan\.json: run_id: is not one plain name[^\n]*$"):
        load_run(run.path)


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize("spoil", [tear, Path.unlink, lambda path: path.write_bytes(bytes(100))])
@pytest.mark.parametrize("name", ["rank_1.json", "record.json"])
def test_a_trial_with_a_torn_or_lost_record_has_not_ended(
    run: RunFolder, name: str, spoil: Callable[[Path], object]
) -> None:
    first, second = (trial_spec(repeat).trial_id for repeat in range(2))
    spoil(run.trial(first).path / name)
    found = load_run(run.path)
    assert (found.status(first), found.status(second)) == (None, Status.COMPLETED)


@pytest.mark.parametrize("submitted", [False, True])
def test_a_torn_record_names_the_way_to_a_whole_run(run: RunFolder, submitted: bool) -> None:
    tear(run.trial(trial_spec(0).trial_id).rank_record(1))
    if submitted:
        run.slurm.mkdir()
        run.submission.touch()
    way = f"to set the trial aside and run it again: zerobench {'submit' if submitted else 'run'} --resume {run.path}"
    with pytest.raises(UserError, match=rf"rank_1\.json: torn or corrupt: .*; {way}$"):
        list(load_run(run.path).trials())


def test_a_trial_whose_spec_is_torn_has_not_ended(run: RunFolder) -> None:
    tear(run.trial(trial_spec(0).trial_id).spec)
    assert load_run(run.path).status(trial_spec(0).trial_id) is None


@pytest.mark.parametrize("text", ["", "{", '{"model": {"na'])
def test_a_torn_spec_names_the_way_to_a_whole_run(run: RunFolder, text: str) -> None:
    """By the run's own list of what was asked; older runs have none, and their sweep has to say it."""
    trial_id = trial_spec(0).trial_id
    asked = {"trial_id": trial_id, "trial": trial_spec(0).model_dump(mode="json"), "ds_config": None}
    run.trial(trial_id).spec.write_text(text)
    way = rf"trial\.json: torn or corrupt: [^\n]*; to set the trial aside and run it again: zerobench run %s{run.path}$"
    with pytest.raises(UserError, match=way % f"{run.sweep} --resume "):
        list(load_run(run.path).trials())
    run.asked.write_text(json.dumps(asked) + "\n")
    with pytest.raises(UserError, match=way % "--resume "):
        list(load_run(run.path).trials())


def test_a_torn_spec_of_a_users_own_script_names_the_watcher(run: RunFolder) -> None:
    run.trial(trial_spec(0).trial_id).spec.write_text("")
    run.sweep.write_text("name: train\ncommand: [train.py]\n")
    with pytest.raises(UserError, match=r"trial\.json: torn [^\n]*; start the script again with: zerobench watch$"):
        list(load_run(run.path).trials())


def test_an_older_record_is_brought_up_to_date_step_by_step(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def from_1(document: dict[str, Any]) -> dict[str, Any]:
        return {"reason": document.pop("why"), **document}

    def from_2(document: dict[str, Any]) -> dict[str, Any]:
        return {**document, "reason": document["reason"].upper()}

    path = run.trial(trial_spec(0).trial_id).record
    change(path, lambda document: document.update(why=document.pop("reason") or "because"))
    monkeypatch.setattr(store, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(store, "UPGRADES", {TrialRecord: {1: from_1, 2: from_2}})
    record = read_record(path, TrialRecord)
    assert (record.reason, record.schema_version) == ("BECAUSE", 3)


def test_an_older_trial_spec_is_brought_up_by_its_runs_version(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run.trial(trial_spec(0).trial_id)
    change(folder.spec, lambda document: document.update(stage=document.pop("strategy")))
    monkeypatch.setattr(store, "SCHEMA_VERSION", 2)
    upgrades = {Plan: {1: dict}, TrialSpec: {1: lambda old: {"strategy": old.pop("stage"), **old}}}
    monkeypatch.setattr(store, "UPGRADES", upgrades)
    assert load_run(run.path).spec(trial_spec(0).trial_id) == trial_spec(0)


def test_a_loss_that_is_not_a_number_survives_the_disk(tmp_path: Path) -> None:
    times = [StepTime(step_s=1, forward_s=1, backward_s=float("inf"), optimizer_s=0)]
    record = completed_rank("t", 0, losses=[1.5, float("nan"), float("-inf")], step_times=times)
    (tmp_path / "rank_0.json").write_text(record.model_dump_json())
    losses = read_record(tmp_path / "rank_0.json", RankRecord).losses
    assert [str(loss) for loss in losses] == ["1.5", "nan", "-inf"]


def test_a_folder_that_is_no_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not a run folder: it has no plan\.json"):
        load_run(tmp_path)


def test_the_newest_run_is_the_one_with_the_latest_time_in_its_name(tmp_path: Path) -> None:
    for name in ("b_20250301-090000", "a_20250302-090000", "c_20250301-100000-2"):
        make_run(tmp_path / name, ended=0, planned=0)
    (tmp_path / "z_20260101-000000").mkdir()  # laid out no further: not a run yet
    assert latest_run(tmp_path).name == "a_20250302-090000"


def test_a_run_is_found_by_path_and_by_name_under_reports(tmp_path: Path) -> None:
    run = make_run(tmp_path / "small_20250101-120000")
    assert find_run(str(run.path), Path("nowhere")) == run.path
    assert find_run(run.run_id, tmp_path) == run.path
    assert find_run(run.run_id.rpartition("_")[0], tmp_path) == run.path
    assert find_run(None, tmp_path) == run.path


def test_a_run_that_is_not_there_is_an_error_with_the_nearest(tmp_path: Path) -> None:
    make_run(tmp_path / "small_20250101-120000")
    with pytest.raises(UserError, match="did you mean 'small_20250101-120000'"):
        find_run("small_20250101-12000", tmp_path)
    with pytest.raises(UserError, match=r"no run under .* yet; make one with: zerobench run quickstart"):
        latest_run(tmp_path / "none")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_stands_in_a_record_is_read_or_refused_in_one_line(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "rank_0.json"
    document: Any = json.loads(completed_rank("t", 0, losses=[1.0]).model_dump_json())
    for key in data.draw(st.lists(st.sampled_from([*document, "unknown"]), max_size=3)):
        document[key] = data.draw(VALUES)
    written = json.dumps(data.draw(st.sampled_from([document, [document], None]))).encode()
    cut = data.draw(st.integers(0, len(written)))
    path.write_bytes(data.draw(st.sampled_from([written, written[:cut], written[:cut] + b"\xff" + written[cut:]])))
    refusal = refused(path)
    assert refusal is None or (refusal.startswith(f"{path}: ") and "\n" not in refusal)


def refused(path: Path) -> str | None:
    """Why the rank record at `path` is refused; None where it is read."""
    try:
        read_record(path, RankRecord)
    except UserError as error:
        return str(error)
    return None


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 10_000, '{"schema_version": 1e999}', '{"a": 1, "a": 2}'])
def test_hostile_documents_are_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(UserError, match=r"record\.json: [^\n]*$"):
        read_record(tmp_path / "record.json", TrialRecord)


@pytest.mark.parametrize(("number", "fits"), [(2**64 - 1, True), (2**64, False), (-(10**30), False)])
def test_a_number_of_a_record_fits_64_bits(tmp_path: Path, number: int, fits: bool) -> None:
    path = tmp_path / "rank_0.json"
    document: Any = json.loads(completed_rank("t", 0, losses=[1.0]).model_dump_json())
    path.write_text(json.dumps(document | {"losses": [number]}))
    assert ("does not fit 64 bits" in (refused(path) or "")) is not fits


def test_a_fraction_and_a_text_may_have_as_many_digits_as_they_like(tmp_path: Path) -> None:
    (tmp_path / "any.json").write_text('{"a": 0.00012345678901234567, "b": "1234567890123456789012345", "c": 1}')
    assert read_json(tmp_path / "any.json") == {"a": 0.00012345678901234567, "b": "1234567890123456789012345", "c": 1}


def test_the_specs_of_a_run_share_the_parts_that_they_have_alike(run: RunFolder) -> None:
    read = load_run(run.path)
    first, second = (read.spec(trial_spec(repeat).trial_id) for repeat in range(2))
    assert first.model is second.model
    assert (first, second) == (trial_spec(0), trial_spec(1))
