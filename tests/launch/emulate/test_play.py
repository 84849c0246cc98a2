"""What a playing process is told, and how its ending is read from what it left."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.report.sample_run import spec
from zerobench.common.errors import UserError
from zerobench.config.derived.cluster import read_cluster
from zerobench.emulator.gpu import EmulatedGpu
from zerobench.launch.emulate.part import PART_VARIABLE, Account, End, Part, Refusal, as_emulated
from zerobench.launch.emulate.play import Stage, read_account
from zerobench.launch.emulate.request import EmulationRequest
from zerobench.records.folder import TrialFolder
from zerobench.records.records import Standing


def stage(variables: dict[str, str] | None = None, ranks: tuple[int, ...] = (2, 5)) -> Stage:
    """Two nodes of four H100, of which an emulator gives these variables."""
    cluster = read_cluster(gpu="h100", gpus="8", gpus_per_node="4", host_memory="1TB")
    request = EmulationRequest(("python", "train.py"), cluster, ranks, steps=3)
    emulator: Any = SimpleNamespace(python="/emulator/python", variables=lambda *_, **__: dict(variables or {}))
    return Stage(emulator, EmulatedGpu.build(cluster.gpu), request)


def part(folder: Path, rank: int = 2, *, under_ledger: bool = True, aside: bool = False) -> Part:
    return stage().part(["python", "t.py"], rank, TrialFolder(folder), under_ledger=under_ledger, aside=aside)


def test_a_part_says_which_rank_of_which_world_on_what(tmp_path: Path) -> None:
    made = part(tmp_path, 6)
    assert (made.command, made.rank, made.world_size, made.ranks_per_node) == (["python", "t.py"], 6, 8, 4)
    assert (made.local_rank, made.node, made.num_nodes) == (2, 1, 2)
    assert (made.gpu, made.host_memory_bytes, made.steps) == ("H100 SXM", 10**12, 3)
    assert made.account == TrialFolder(tmp_path).emulated_account(6).absolute()


@pytest.mark.parametrize(("under_ledger", "aside", "has_snapshot"), [
    (True, False, True), (False, False, False), (True, True, False), (False, True, False)
])  # fmt: skip
def test_a_snapshot_is_taken_of_what_is_named_and_stays(
    tmp_path: Path, under_ledger: bool, aside: bool, has_snapshot: bool
) -> None:
    made = part(tmp_path, under_ledger=under_ledger, aside=aside)
    assert made.snapshot == (TrialFolder(tmp_path).memory_snapshot(2).absolute() if has_snapshot else None)
    assert made.under_ledger is under_ledger


@pytest.mark.parametrize(("rank", "aside", "speaks"), [(2, False, True), (5, False, False), (2, True, False)])
def test_the_first_rank_that_was_asked_for_says_what_the_work_was(
    tmp_path: Path, rank: int, aside: bool, speaks: bool
) -> None:
    assert part(tmp_path, rank, aside=aside).speaks is speaks


@pytest.mark.parametrize(("emulators", "inherited", "expected"), [
    ("/overlay", "/mine", "/overlay:{ours}"),
    (None, "/mine", "/mine:{ours}"),
    (None, "", "{ours}"),
    ("{ours}:/overlay", "", "{ours}:/overlay"),
])  # fmt: skip
def test_a_playing_process_finds_its_part_and_this_zerobench_behind_all_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, emulators: str | None, inherited: str, expected: str
) -> None:
    ours = str(Path(__file__).resolve().parents[3])
    monkeypatch.setenv("PYTHONPATH", inherited)
    given = {} if emulators is None else {"PYTHONPATH": emulators.format(ours=ours)}
    made, folder = part(tmp_path), TrialFolder(tmp_path)
    found = stage(given | {"X": "1"}).variables(made, folder)
    assert found["PYTHONPATH"] == expected.format(ours=ours).replace(":", os.pathsep)
    assert found["X"] == "1"
    assert Part.model_validate_json(Path(found[PART_VARIABLE]).read_bytes()) == made
    assert stage().command() == ["/emulator/python", "-m", "zerobench.launch.emulate.inside"]


def test_on_a_boundless_gpu_only_the_gpu_differs() -> None:
    usual = stage()
    assert usual.boundless.gpu == usual.gpu.boundless
    assert usual.boundless.request is usual.request


def left(made: Part, **fields: Any) -> None:
    made.account.parent.mkdir(parents=True, exist_ok=True)
    made.account.write_text(Account(rank=2, **{"end": End.STOPPED, **fields}).model_dump_json())


@pytest.mark.parametrize(("returncode", "exit_code", "said"), [
    (-9, 137, "was killed by SIGKILL"), (-11, 139, "was killed by SIGSEGV"), (3, 3, "exited with 3"),
    (0, 1, "exited with 0"),
])  # fmt: skip
def test_a_process_that_left_no_account_failed_however_it_ended(
    tmp_path: Path, returncode: int, exit_code: int, said: str
) -> None:
    found = read_account(part(tmp_path), returncode)
    assert (found.rank, found.end, found.exit_code) == (2, End.FAILED, exit_code)
    assert found.message == f"its process {said} without a result"


def test_a_torn_account_is_none(tmp_path: Path) -> None:
    made = part(tmp_path)
    left(made)
    made.account.write_text(made.account.read_text()[:10])
    assert read_account(made, 0).end is End.FAILED


@pytest.mark.parametrize(("returncode", "exit_code", "notes"), [
    (0, 0, []), (1, 1, []), (0, 1, []), (-11, 0, ["its process was killed by SIGSEGV after the script's end"]),
    (134, 0, ["its process exited with 134 after the script's end"]),
])  # fmt: skip
def test_a_process_that_died_while_python_was_ending_keeps_its_account_with_a_note(
    tmp_path: Path, returncode: int, exit_code: int, notes: list[str]
) -> None:
    made = part(tmp_path)
    left(made, exit_code=exit_code)
    found = read_account(made, returncode)
    assert (found.end, found.exit_code, found.notes) == (End.STOPPED, exit_code, notes)


@pytest.mark.parametrize(("message", "said"), [("COMMAND: no", "COMMAND: no"), (None, "COMMAND: cannot be emulated")])
def test_a_command_that_cannot_be_played_is_the_users_mistake(tmp_path: Path, message: str | None, said: str) -> None:
    made = part(tmp_path)
    left(made, end=End.REFUSED, message=message)
    with pytest.raises(UserError, match=f"^{said}$"):
        read_account(made, 0)


@pytest.mark.parametrize(
    ("asked", "free", "in_pieces"), [(40, 10, True), (41, 10, False), (30, 0, True), (31, 0, False)]
)
def test_there_was_room_in_pieces_where_what_is_cached_and_free_is_as_much(
    asked: int, free: int, in_pieces: bool
) -> None:
    """Of 100 reserved bytes 70 were given out."""
    standing = Standing(allocated_bytes=70, reserved_bytes=100, largest_free_bytes=5)
    refusal = Refusal(bytes_asked=asked, bytes_free=free, standing=standing, during="forward")
    assert refusal.in_pieces is in_pieces


def test_a_trial_says_that_it_was_emulated_on_which_gpu_by_which_rank(tmp_path: Path) -> None:
    found = as_emulated(spec("zero2"), part(tmp_path, 5))
    assert found.evidence == "emulated"
    assert (found.prediction.rank, found.prediction.gpu) == (5, "H100 SXM")
    assert found.prediction.host_memory_bytes == 10**12
