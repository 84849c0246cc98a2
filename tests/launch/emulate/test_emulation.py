"""What an emulation knows of a script's work."""

from tests.report.sample_run import completed_trial, spec
from zerobench.launch.emulate.emulation import again_compiled, known_work
from zerobench.launch.emulate.part import Account, End


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
