"""What grows with a micro-batch in the record of a trial, by hand."""

from dataclasses import replace

import pytest

from tests.report.predicted_trial import asked, collective, trial
from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Phase
from zerobench.config.trial.trial import OwnScript
from zerobench.estimate.clock.larger import of_more_tokens
from zerobench.records.records import CollectiveTraffic
from zerobench.records.trials import Trial

ROWS = [collective("all_reduce", Phase.BACKWARD, 100), collective("all_reduce", Phase.STEP, 10)]


def larger(strategy: str, flops_per_step: int | None = 2000) -> Trial:
    flops = {Phase.FORWARD: 600, Phase.BACKWARD: 1200, Phase.STEP: 5}
    sample = trial(asked(strategy), flops=flops, collectives=ROWS)
    [rank] = sample.ranks
    counted = rank.model_copy(update={"flops_per_step": flops_per_step})
    return of_more_tokens(replace(sample, ranks=[counted]), 3)


def messages(found: list[CollectiveTraffic]) -> list[int]:
    return [row.message_bytes for row in found]


@pytest.mark.parametrize(("strategy", "sent"), [("zero2", [100, 10]), ("tensor", [300, 10])])
def test_flops_of_the_passes_grow_and_messages_where_they_are_tokens(strategy: str, sent: list[int]) -> None:
    found = larger(strategy)
    [rank] = found.ranks
    assert found.spec.micro_batch_size == 3
    assert [row.flops for row in rank.flops] == [1800, 3600, 5]
    assert rank.flops_per_step == 6000
    assert messages(rank.collectives) == sent


def test_flops_that_were_not_counted_stay_unknown() -> None:
    assert larger("zero2", None).ranks[0].flops_per_step is None


def test_a_scripts_step_is_not_made_larger_since_nobody_knows_its_tokens() -> None:
    sample = trial(asked("zero2"), flops={}, collectives=ROWS)
    own = replace(sample, spec=sample.spec.model_copy(update={"own": OwnScript(name="train")}))
    with pytest.raises(UserError, match="no number of tokens"):
        of_more_tokens(own, 2)
