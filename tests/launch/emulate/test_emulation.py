"""What an emulation knows of a script's work."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.report.sample_run import completed_trial, spec
from tests.tools.known import known
from tests.tools.rank_records import ledger_row, rank_record
from zerobench.common.vocabulary import Category, Phase, Place, Status, StepKind
from zerobench.config.derived.cluster import read_cluster
from zerobench.launch.emulate import emulation
from zerobench.launch.emulate.emulation import Emulation, _status, again_compiled, known_work
from zerobench.launch.emulate.figures import Verdict, rank_fit
from zerobench.launch.emulate.part import Account, End, Refusal
from zerobench.launch.emulate.play import Stage
from zerobench.launch.emulate.request import EmulationRequest
from zerobench.records.folder import RunFolder
from zerobench.records.records import Failure, MemoryRow, Standing


def test_a_compiler_that_is_itself_compiled_first_is_announced() -> None:
    account = Account(rank=2, end=End.STOPPED, compiles=True)
    rest = "its memory counted and not named"
    assert again_compiled(account) == f"rank 2 uses torch.compile; running again compiled, {rest}"
    account.deepcompiles = True
    minutes = "at first use its C++ compiles: minutes, once per machine"
    assert again_compiled(account) == f"rank 2 uses DeepCompile; running again compiled ({minutes}), {rest}"


def test_the_work_is_known_where_every_rank_trains_its_whole_model() -> None:
    asked = spec("zero1")
    first, *others = completed_trial(asked).ranks
    assert first.parameters is not None
    frozen = first.parameters.model_copy(update={"trainable": first.parameters.total // 100})
    assert known_work(asked, [first, *others]) is asked
    assert known_work(asked, [first.model_copy(update={"parameters": frozen}), *others]) is None
    assert known_work(asked, []) is None


GIB = 2**30


def made(*accounts: Account, host: int | None = None, interrupted: bool = False) -> Emulation:
    """What came of ranks on a node of two GPUs and 10 GiB, of which each holds `host` GiB."""
    rows = [] if host is None else host_total(host * GIB)
    record = rank_record("script", memory=rows)
    ranks = tuple(rank_fit(account, record, 80 * GIB, None) for account in accounts)
    verdict = Verdict(ranks, 2, 10 * GIB)
    cluster = read_cluster(gpu="h100", gpus="2")
    request = EmulationRequest(("python", "t.py"), cluster, tuple(range(len(accounts))), steps=1)
    return Emulation(request, RunFolder(Path("run")), verdict, interrupted)


def host_total(nbytes: int) -> list[MemoryRow]:
    return [ledger_row(StepKind.STEADY, Phase.STEP, Place.HOST, Category.TOTAL, nbytes)]


def account(rank: int, end: End = End.STOPPED, **fields: Any) -> Account:
    return Account(rank=rank, end=end, touched_device=True, reserved_bytes=GIB, **fields)


STANDING = Standing(allocated_bytes=1, reserved_bytes=2, largest_free_bytes=1)
REFUSED = account(
    1,
    End.OUT_OF_DEVICE_MEMORY,
    message="CUDA out of memory",
    refusal=Refusal(bytes_asked=7, bytes_free=3, standing=STANDING, during="forward"),
)
FAILED = account(0, End.FAILED, exit_code=3)


@pytest.mark.parametrize(("accounts", "host", "status", "message"), [
    ((account(0), account(1)), None, Status.COMPLETED, None),
    ((account(0, End.FINISHED),), 5, Status.COMPLETED, None),
    ((account(0), REFUSED), None, Status.OUT_OF_DEVICE_MEMORY, "rank 1: CUDA out of memory"),
    ((FAILED,), None, Status.CRASH, "rank 0: the script failed: exit status 3"),
    ((account(0, End.FAILED, message="ValueError: x"),), None, Status.CRASH,
     "rank 0: the script failed: ValueError: x"),
    ((FAILED, REFUSED), None, Status.CRASH, "rank 0: the script failed: exit status 3"),
    ((account(0), account(1)), 5, Status.COMPLETED, None),
    ((account(0), account(1)), 6, Status.OUT_OF_HOST_MEMORY,
     f"host memory per node: tensors need {12 * GIB} bytes (sum of its 2 ranks), available {10 * GIB}"),
])  # fmt: skip
def test_an_emulation_ends_as_its_ranks_did_the_scripts_own_failure_first(
    accounts: tuple[Account, ...], host: int | None, status: Status, message: str | None
) -> None:
    found, failure = _status(made(*accounts, host=host), {})
    assert (found, None if failure is None else failure.message) == (status, message)


def test_one_that_was_stopped_is_interrupted_whatever_its_ranks_say() -> None:
    found, failure = _status(made(FAILED, interrupted=True), {})
    assert (found, known(failure).message) == (Status.INTERRUPTED, "stopped before its end")


def test_a_refusal_is_kept_with_what_was_asked_and_free_and_what_the_rank_needs_in_all() -> None:
    own = rank_record("script", failure=Failure(message="x", bytes_needed=90))
    failure = known(_status(made(account(0), REFUSED), {1: own})[1])
    assert (failure.rank, failure.bytes_asked, failure.bytes_free, failure.bytes_needed) == (1, 7, 3, 90)
    assert failure.standing == STANDING
    assert known(_status(made(account(0), REFUSED), {0: own})[1]).bytes_needed is None


def test_of_a_full_node_what_its_ranks_need_and_what_it_has_is_kept() -> None:
    failure = known(_status(made(account(0), account(1), host=6), {})[1])
    assert (failure.bytes_asked, failure.bytes_free, failure.rank) == (12 * GIB, 10 * GIB, None)


def test_releases_that_were_not_tried_are_named_before_anything_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    stage: Any = SimpleNamespace(emulator=SimpleNamespace(variables=lambda *_: pytest.fail(said[0])), gpu=None)
    monkeypatch.setattr(emulation, "untried", lambda: ["torch 9.9 has not been tried"])
    monkeypatch.setattr(emulation, "find_emulator", lambda: None)
    monkeypatch.setattr(Stage, "of", lambda *_: stage)
    request = EmulationRequest(("python", "t.py"), read_cluster(gpu="h100", gpus="2"), (0,), steps=1)
    with pytest.raises(pytest.fail.Exception, match=r"torch 9\.9 has not been tried"):
        emulation.emulate(request, lambda line, *_: said.append(line))
    assert said == ["torch 9.9 has not been tried"]
