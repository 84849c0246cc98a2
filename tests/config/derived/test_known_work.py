"""A user's own script may not have told all of its work."""

from tests.config.derived.test_megatron import trial
from zerobench.config.derived.known_work import knows_work
from zerobench.config.trial.trial import OwnScript


def test_a_trial_of_a_sweep_is_known_and_a_script_without_its_batch_is_not() -> None:
    of_sweep = trial()
    known = of_sweep.model_copy(update={"own": OwnScript(name="train", unknown=("data",))})
    unknown = of_sweep.model_copy(update={"own": OwnScript(name="train", unknown=("micro_batch_size",))})
    assert [knows_work(one) for one in (of_sweep, known, unknown)] == [True, True, False]
