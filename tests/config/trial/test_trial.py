"""A trial's name and hash are those of what it says."""

from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import FINE_TUNING, TrialSpec


def trial() -> TrialSpec:
    return TrialSpec(model=resolve_model("llama-20m"), strategy="zero1", gpus_per_node=2)


def test_a_changed_copy_has_a_hash_and_a_name_of_its_own_also_where_the_first_ones_were_asked_for() -> None:
    first = trial()
    before = (first.config_hash, first.trial_id)
    copy = first.model_copy(update={"micro_batch_size": 2})
    afresh = TrialSpec.model_validate(first.model_dump() | {"micro_batch_size": 2})
    assert (copy.config_hash, copy.trial_id) == (afresh.config_hash, afresh.trial_id)
    assert copy.config_hash != before[0]
    assert (first.config_hash, first.trial_id) == before


def test_trials_that_say_the_same_are_equal_whether_or_not_their_names_were_asked_for() -> None:
    named, nameless = trial(), trial()
    assert named.trial_id
    assert named == nameless
    assert named.model_dump() == nameless.model_dump()


def test_full_fine_tuning_has_a_smaller_rate_and_no_decay() -> None:
    found = FINE_TUNING.torch_values("lr", "betas", "weight_decay")
    assert found == {"lr": 2e-5, "betas": [0.9, 0.999], "weight_decay": 0.0}


def test_the_order_of_overrides_changes_no_hash() -> None:
    keys = {"gradient_clipping": 0.5, "zero_optimization.reduce_bucket_size": 1000}
    one, other = (trial().model_copy(update={"ds_config": dict(each)}) for each in (keys, reversed(keys.items())))
    assert one.config_hash == other.config_hash != trial().config_hash
