"""Runs of several trials: what is on disk, what a failure does to the next, Ctrl-C and resuming."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest
import yaml

from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Status
from zerobench.config.models.presets import resolve_model
from zerobench.config.rules.rules import Skip
from zerobench.config.sweep.expand import PlannedTrial
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run import runner
from zerobench.launch.run.executor import LocalExecutor
from zerobench.launch.run.launcher import MARK
from zerobench.launch.run.lock import locked
from zerobench.launch.run.lost import renew
from zerobench.launch.run.observer import Observer
from zerobench.launch.run.runner import RunResult, refuse_other_plan, resume_run, run_sweep, standing
from zerobench.launch.run.tree import belongs
from zerobench.records.folder import RunFolder
from zerobench.records.progress import Progress
from zerobench.records.records import TrialRecord
from zerobench.records.store import Trial, load_run

EXECUTOR = LocalExecutor(num_cpus=2, num_gpus=0, worker_module="standin_worker")
SKIP = Skip(rule="too_many_ranks", reason="8 ranks on 2 devices")
MakeTrial = Callable[..., TrialSpec]


class Heard(Observer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.phases: set[str] = set()

    def run_started(self, run: RunFolder, to_do: int, kept: int, skipped: int) -> None:
        self.told.append(f"run: {to_do} to do, {kept} kept, {skipped} skipped")

    def note(self, line: str) -> None:
        self.told.append(line)

    def trial_started(self, trial: TrialSpec, number: int, to_do: int) -> None:
        self.told.append(f"{number} of {to_do}: {trial.model.name}")

    def trial_progress(self, ranks: Sequence[Progress]) -> None:
        self.phases |= {rank.phase for rank in ranks}

    def trial_ended(self, record: TrialRecord) -> None:
        self.told.append(record.status)

    def run_ended(self) -> None:
        self.told.append("end")


def run(planned: Sequence[PlannedTrial], reports: Path, observer: Observer | None = None) -> RunResult:
    return run_sweep(
        planned,
        {"name": "a sweep", "axes": {"model": "standin"}},
        environment={"python": "3.11"},
        reports=reports,
        executor=EXECUTOR,
        observer=observer or Observer(),
    )


@pytest.fixture(scope="module")
def heard() -> Heard:
    return Heard()


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory, make_trial: MakeTrial, heard: Heard) -> RunResult:
    """A trial that fails, one that is skipped, one that completes."""
    planned = [
        PlannedTrial(trial=make_trial("fails", {0: "crash"}, gpus_per_node=1)),
        PlannedTrial(trial=make_trial("skipped", gpus_per_node=8), skipped=SKIP),
        PlannedTrial(trial=make_trial("completes", gpus_per_node=1, strategy="zero1")),
    ]
    return run(planned, tmp_path_factory.mktemp("reports"), heard)


@pytest.fixture(scope="module")
def trials(ended: RunResult) -> dict[str, Trial]:
    return {trial.spec.model.name: trial for trial in load_run(ended.folder.path).trials()}


def test_a_failure_does_not_stop_the_sweep(ended: RunResult, trials: dict[str, Trial]) -> None:
    assert [trial.record.status for trial in trials.values()] == [Status.CRASH, Status.SKIPPED, Status.COMPLETED]
    assert ended.statuses == {Status.CRASH: 1, Status.SKIPPED: 1, Status.COMPLETED: 1}
    assert ended.exit_code == 1


def test_the_run_folder_is_named_after_the_sweep_and_the_time(ended: RunResult) -> None:
    name, _, stamp = ended.folder.run_id.rpartition("_")
    assert name == "a_sweep"
    assert len(stamp) == len("20250101-120000")


def test_the_sweep_and_the_environment_are_kept_with_the_run(ended: RunResult) -> None:
    assert yaml.safe_load(ended.folder.sweep.read_text()) == {"name": "a sweep", "axes": {"model": "standin"}}
    assert json.loads(ended.folder.environment.read_text()) == {"python": "3.11"}


def test_a_skipped_trial_is_in_plan_and_record_with_rule_and_reason(ended: RunResult, trials: dict[str, Trial]) -> None:
    record = trials["skipped"].record
    entry = load_run(ended.folder.path).plan.trials[1]
    assert (entry.rule, entry.reason) == (record.rule, record.reason) == ("too_many_ranks", "8 ranks on 2 devices")
    assert record.started_at_s is None


def test_a_trial_under_deepspeed_has_its_config_and_others_have_none(trials: dict[str, Trial]) -> None:
    config = json.loads(trials["completes"].folder.ds_config.read_text())
    assert config["zero_optimization"]["stage"] == 1
    assert not trials["fails"].folder.ds_config.exists()


def test_the_command_is_kept_beside_what_it_printed(trials: dict[str, Trial]) -> None:
    folder = trials["completes"].folder
    assert f"--trial-folder\n{folder.path}\n" in folder.command.read_text()
    assert "exits successfully" in folder.stdout.read_text()
    assert folder.stderr.exists()


def test_the_observer_hears_of_each_trial_in_order(ended: RunResult, heard: Heard) -> None:
    assert ended.folder.path.exists()
    assert heard.told == [
        "run: 2 to do, 0 kept, 1 skipped",
        "1 of 2: fails",
        "crash",
        "2 of 2: completes",
        "completed",
        "end",
    ]
    assert heard.phases >= {"timed"}


def test_releases_that_were_not_tried_are_named_before_the_first_trial_of_a_run_that_uses_them(
    tmp_path: Path, make_trial: MakeTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "untried", lambda: ["torch 9.9 has not been tried"])
    heard = Heard()
    run([PlannedTrial(trial=make_trial("completes", gpus_per_node=1))], tmp_path, heard)
    assert heard.told[0] == "torch 9.9 has not been tried"
    assert heard.told[1:3] == ["run: 1 to do, 0 kept, 0 skipped", "1 of 1: completes"]


def test_a_run_in_which_all_completed_or_were_skipped_exits_with_0(tmp_path: Path, make_trial: MakeTrial) -> None:
    result = run([PlannedTrial(trial=make_trial(), skipped=SKIP)], tmp_path)
    assert result.exit_code == 0


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory, wait_until: Callable[..., None]) -> tuple[RunFolder, int]:
    """A run of three trials that got SIGINT in the second; with the runner's exit status."""
    reports = tmp_path_factory.mktemp("interrupted")
    script = str(Path(__file__).with_name("run_standins.py"))
    with subprocess.Popen([sys.executable, script, "run", str(reports)]) as process:
        wait_until(lambda: list(reports.glob("*/been_here_0")))
        process.send_signal(signal.SIGINT)
        status = process.wait(60)
    [path] = reports.iterdir()
    return RunFolder(path), status


def test_ctrl_c_ends_the_trial_and_keeps_what_is_done(
    interrupted: tuple[RunFolder, int], marked_processes: Callable[[Path], list[psutil.Process]]
) -> None:
    folder, status = interrupted
    assert status == 130
    found = load_run(folder.path)
    assert [trial.record.status for trial in found.trials()] == [Status.COMPLETED, Status.INTERRUPTED]
    assert len(found.pending()) == 1
    assert marked_processes(folder.path) == []


def test_a_resumed_run_does_only_what_is_missing_or_failed_and_loses_nothing(
    interrupted: tuple[RunFolder, int],
) -> None:
    folder, _ = interrupted
    done = next(iter(load_run(folder.path).trials())).folder.record
    before = (done.read_bytes(), done.stat().st_mtime_ns)
    script = str(Path(__file__).with_name("run_standins.py"))
    assert subprocess.run([sys.executable, script, "resume", str(folder.path)], check=False).returncode == 0

    assert (done.read_bytes(), done.stat().st_mtime_ns) == before
    assert [trial.record.status for trial in load_run(folder.path).trials()] == [Status.COMPLETED] * 3
    [aside] = (folder.path / "set_aside").iterdir()
    assert TrialRecord.model_validate_json((aside / "record.json").read_bytes()).status is Status.INTERRUPTED
    assert {"trial.json", "cmd.txt", "stdout.txt", "progress_0.json", "logs"} <= {p.name for p in aside.iterdir()}
    [later] = folder.path.glob("environment_resumed_*.json")
    assert json.loads(later.read_text()) == {"when": "later"}
    assert json.loads(folder.environment.read_text()) == {"when": "first"}


def test_a_resumed_run_sets_a_torn_trial_aside_and_does_it_again(tmp_path: Path) -> None:
    """With formula trials, which take no launch: one that is whole, one torn, one skipped whose record is lost."""
    folder, planned = formula_run(tmp_path)
    whole, torn, lost = (folder.trial(item.trial.trial_id) for item in planned)
    before = whole.record.read_bytes()
    torn.rank_record(0).write_bytes(torn.rank_record(0).read_bytes()[:100])
    lost.record.write_bytes(b"")

    with pytest.raises(UserError, match="torn or corrupt"):
        list(load_run(folder.path).trials())
    assert [status for _, status in standing(load_run(folder.path))] == [Status.COMPLETED, None, Status.SKIPPED]
    assert resume_run(folder.path, environment={}, executor=EXECUTOR, observer=Observer()).exit_code == 0
    records = [trial.record for trial in load_run(folder.path).trials()]
    assert [record.status for record in records] == [Status.COMPLETED, Status.COMPLETED, Status.SKIPPED]
    assert (records[2].rule, records[2].reason) == ("too_many_ranks", "8 ranks on 2 devices")
    assert whole.record.read_bytes() == before
    [aside] = (folder.path / "set_aside").iterdir()
    assert aside.name == f"{torn.path.name}.1"
    assert (aside / "rank_0.json").stat().st_size == 100


def formula_run(reports: Path) -> tuple[RunFolder, list[PlannedTrial]]:
    """Two formula trials, which take no launch, and one that is skipped."""
    work = {"model": resolve_model("llama-20m"), "gpus_per_node": 2, "evidence": "formula"}
    trials = [TrialSpec.model_validate(work | {"strategy": name}) for name in ("zero1", "zero2", "zero3")]
    planned = [PlannedTrial(trial=one) for one in trials[:2]] + [PlannedTrial(trial=trials[2], skipped=SKIP)]
    return run(planned, reports).folder, planned


@pytest.mark.parametrize("text", ["", '{"model": {"na'])
@pytest.mark.parametrize("number", [0, 2])
def test_a_resumed_run_knows_what_a_trial_was_whose_spec_is_torn(tmp_path: Path, number: int, text: str) -> None:
    """One that had completed, which is set aside and done again, and one that was skipped."""
    folder, planned = formula_run(tmp_path)
    torn = folder.trial(planned[number].trial.trial_id)
    before = [path.read_bytes() for path in (torn.spec, *torn.rank_records())]
    torn.spec.write_text(text)
    with pytest.raises(UserError, match=r"trial\.json: torn or corrupt: [^\n]*zerobench run --resume"):
        list(load_run(folder.path).trials())

    assert resume_run(folder.path, environment={}, executor=EXECUTOR, observer=Observer()).exit_code == 0
    assert [trial.spec for trial in load_run(folder.path).trials()] == [item.trial for item in planned]
    assert [path.read_bytes() for path in (torn.spec, *torn.rank_records())] == before
    aside = [path / "trial.json" for path in (folder.path / "set_aside").glob("*")]
    assert [path.read_text() for path in aside] == ([text] if number == 0 else [])


def test_a_spec_that_is_torn_in_an_older_run_is_told_by_the_sweep(tmp_path: Path) -> None:
    folder, planned = formula_run(tmp_path)
    folder.asked.unlink()
    folder.trial(planned[1].trial.trial_id).spec.write_text("")
    refuse_other_plan(folder.path, planned)
    with pytest.raises(UserError, match=rf"zerobench run {folder.sweep} --resume {folder.path}$"):
        resume_run(folder.path, environment={}, executor=EXECUTOR, observer=Observer())
    asked = resume_run(folder.path, planned=planned, environment={}, executor=EXECUTOR, observer=Observer())
    assert asked.exit_code == 0
    assert [trial.spec for trial in load_run(folder.path).trials()] == [item.trial for item in planned]


def test_nothing_is_written_through_the_folder_of_a_skipped_trial_that_is_a_link(
    tmp_path: Path, make_trial: MakeTrial
) -> None:
    trial = make_trial()
    folder = run([PlannedTrial(trial=trial, skipped=SKIP)], tmp_path).folder
    theirs = tmp_path / "theirs"
    folder.trial(trial.trial_id).path.rename(theirs)
    (theirs / "record.json").write_text("torn")
    folder.trial(trial.trial_id).path.symlink_to(theirs)
    with pytest.raises(UserError, match=r"is a link out of the run"):
        resume_run(folder.path, environment={}, executor=EXECUTOR, observer=Observer())
    assert (theirs / "record.json").read_text() == "torn"


def test_a_link_in_a_foreign_run_is_refused_before_a_trial_begins(tmp_path: Path, make_trial: MakeTrial) -> None:
    trial = make_trial()
    folder = run([PlannedTrial(trial=trial, skipped=SKIP)], tmp_path).folder
    folder.plan.write_text(folder.plan.read_text().replace('"8 ranks on 2 devices"', "null"))
    folder.trial(trial.trial_id).record.unlink()
    theirs = tmp_path / "theirs.txt"
    theirs.write_text("precious")
    folder.trial(trial.trial_id).stdout.symlink_to(theirs)
    with pytest.raises(UserError, match=r"stdout\.txt is a link out of the run"):
        resume_run(folder.path, environment={}, executor=EXECUTOR, observer=Observer())
    assert theirs.read_text() == "precious"


def test_what_still_runs_of_a_trial_whose_runner_was_killed_is_ended_before_it_is_run_again(
    tmp_path: Path, make_trial: MakeTrial, wait_until: Callable[..., None]
) -> None:
    trial = make_trial()
    folder = run([PlannedTrial(trial=trial, skipped=SKIP)], tmp_path).folder
    begun = folder.trial(trial.trial_id)
    begun.command.write_text("deepspeed\n")
    with subprocess.Popen(["sleep", "600"], env={MARK: str(begun.path)}, start_new_session=True) as orphan:
        wait_until(lambda: belongs(psutil.Process(orphan.pid), str(begun.path)))
        opened = load_run(folder.path)
        renew(opened, opened.spec(begun.path.name), begun, EXECUTOR)
        assert orphan.wait(10) == -signal.SIGTERM
    assert sorted(path.name for path in begun.path.iterdir()) == ["trial.json"]
    [aside] = (folder.path / "set_aside").iterdir()
    assert sorted(path.name for path in aside.iterdir()) == ["cmd.txt", "record.json", "trial.json"]


def test_a_run_folder_in_use_is_refused_in_one_line(tmp_path: Path, make_trial: MakeTrial) -> None:
    folder = run([PlannedTrial(trial=make_trial(), skipped=SKIP)], tmp_path).folder
    with locked(folder), pytest.raises(UserError, match=rf"is in use by another zerobench \(process {os.getpid()} on"):
        resume_run(folder.path, environment={}, executor=EXECUTOR, observer=Observer())


def test_a_lock_is_let_go_with_its_holder(tmp_path: Path) -> None:
    with locked(RunFolder(tmp_path)):
        pass
    with locked(RunFolder(tmp_path)):
        pass


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, make_trial: MakeTrial) -> None:
    (tmp_path / "a_file").write_text("")
    with pytest.raises(UserError, match=r"^--reports: .*a_file: cannot be written: Not a directory$"):
        run([PlannedTrial(trial=make_trial())], tmp_path / "a_file")


def test_several_nodes_without_a_hostfile_are_refused_before_anything_is_written(
    tmp_path: Path, make_trial: MakeTrial
) -> None:
    with pytest.raises(UserError, match="--hostfile"):
        run([PlannedTrial(trial=make_trial(num_nodes=2))], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_same_trial_twice_is_refused(tmp_path: Path, make_trial: MakeTrial) -> None:
    with pytest.raises(UserError, match="appears twice"):
        run([PlannedTrial(trial=make_trial()), PlannedTrial(trial=make_trial())], tmp_path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a hundred kB, where we may mount one."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(path)], check=False, capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield path
    subprocess.run(["umount", str(path)], check=True)


class FillsTheDisk(Observer):
    """Takes all space once the first trial begins."""

    def __init__(self, disk: Path) -> None:
        self.disk = disk

    def trial_started(self, trial: TrialSpec, number: int, to_do: int) -> None:
        with (self.disk / "everything").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return


def test_a_full_disk_is_one_line_that_says_how_to_go_on(small_disk: Path, make_trial: MakeTrial) -> None:
    with pytest.raises(UserError) as caught:
        run([PlannedTrial(trial=make_trial())], small_disk, FillsTheDisk(small_disk))
    [folder] = small_disk.glob("a_sweep_*")
    message = str(caught.value)
    assert "No space left on device" in message
    assert message.endswith(f"measurements are kept, continue with: zerobench run --resume {folder}")
    assert "\n" not in message
    assert len(load_run(folder).pending()) == 1
    assert list(folder.rglob("*.tmp")) == []
