"""The step that is reported as steady is like those that follow, or the record says that it is not."""

import pytest

from tests.report.sample_run import spec
from zerobench.config.derived.step_plan import leads_to_memory, plan_steps, unsettled_reason
from zerobench.config.trial.trial import StepsSpec


@pytest.mark.parametrize(("warmup", "memory", "is_settled"), [(0, 1, False), (1, 1, True), (0, 2, True)])
def test_ddp_s_second_step_is_no_steady_one(warmup: int, memory: int, is_settled: bool) -> None:
    steps = StepsSpec(warmup=warmup, memory=memory, timed=1)
    reason = unsettled_reason(spec("ddp", steps=steps))
    assert (reason is None) is is_settled
    if reason is not None:
        assert "step 2 is reported as steady" in reason
        assert "use steps.warmup 1 or more" in reason


def test_strategies_that_settle_in_the_first_step_need_no_warm_up() -> None:
    assert unsettled_reason(spec("zero2", steps=StepsSpec(warmup=0, memory=1, timed=1))) is None


def test_the_last_warm_up_step_before_a_memory_step_leads_to_it() -> None:
    kinds = [step.kind for step in plan_steps(spec("zero2", steps=StepsSpec(warmup=2, memory=1, timed=1)))]
    assert [index for index in range(len(kinds)) if leads_to_memory(kinds, index)] == [2]


def test_steps_whose_collectives_are_timed_come_last() -> None:
    kinds = [step.kind for step in plan_steps(spec("zero2", steps=StepsSpec(timed=3, communication=2)))]
    assert kinds[-5:] == ["timed"] * 3 + ["communication"] * 2
    assert (kinds.count("timed"), kinds.count("communication")) == (3, 2)
