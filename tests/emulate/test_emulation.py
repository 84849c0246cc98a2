"""What an emulation knows of a script's work."""

from __future__ import annotations

from tests.report.sample_run import completed_trial, spec
from zerobench.emulate.emulation import known_work


def test_the_work_is_known_where_every_rank_trains_its_whole_model() -> None:
    asked = spec("zero1")
    first, *others = completed_trial(asked).ranks
    assert first.parameters is not None
    frozen = first.parameters.model_copy(update={"trainable": first.parameters.total // 100})
    assert known_work(asked, [first, *others]) is asked
    assert known_work(asked, [first.model_copy(update={"parameters": frozen}), *others]) is None
    assert known_work(asked, []) is None
