"""Each axis is one row, of which everything that names axes is derived."""

import pytest

from tests.config.axes.axis_samples import pair
from tests.report.sample_run import spec
from tests.tools.known import known
from zerobench.common.errors import UserError
from zerobench.config.axes.axes import (
    AXES,
    DEFAULTS,
    EVIDENCE_AXES,
    KEY_COLUMNS,
    LABELS,
    LAYOUT,
    READERS,
    ROWS,
    SPEED,
    STRATEGY_AXES,
    help_lines,
    read_axis,
)
from zerobench.config.axes.axis import Axis
from zerobench.config.axes.engine_axes import ENGINE_AXES
from zerobench.config.axes.work_axes import WORK_AXES
from zerobench.config.derived.strategy import STRATEGIES
from zerobench.config.sweep import sweep
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.plain import load_plain
from zerobench.config.trial.trial import TrialSpec
from zerobench.report.export.schema import KEYS

TRIAL = TrialSpec(model=ModelSpec(name="m", hf_config={"model_type": "llama"}), strategy="zero3")
OF_PREDICTION = {"gpu", "rank"}
ALWAYS = {"strategy", "batch_ramp", "adapter", "frozen", "cross_entropy", "compile", "consistency", "tf_strategy"}
ALWAYS |= {"weights", "compression", "zero_init", "hpz_partition_size", "mics_shard_size"}
"""Axes whose value a trial's name has though it is the usual one."""
NOT_WORK = {"nvme_path", "evidence"}
"""Axes that are fields and not of the work: which drive it swaps to, and how its figures are come by."""
EACH = pytest.mark.parametrize("axis", AXES.values(), ids=lambda axis: axis.name)


@EACH
def test_an_axis_reads_the_example_that_its_help_shows_or_another_s_help_names_it(axis: Axis) -> None:
    if axis.example is None:
        assert axis.name in AXES[axis.said_by].help
        return
    assert axis.help
    [written] = load_plain(f"[{axis.example}]", "example")
    assert read_axis(axis.name, written, "example")


def test_the_help_of_sweeps_says_what_the_rows_say() -> None:
    assert "\n".join(help_lines()) in str(sweep.__doc__)
    said = {name for line in help_lines() if not (name := line.split(":")[0].strip()).startswith("#")}
    assert said == {name for name, axis in AXES.items() if axis.example is not None}


@EACH
def test_an_axis_has_columns_that_stand_in_the_tables_or_says_where_its_value_stands(axis: Axis) -> None:
    assert {column.name for column in axis.columns if column.is_key} <= set(KEYS)
    assert axis.columns or axis.said_by in AXES or axis.said_by.startswith("settings")


@EACH
def test_an_axis_has_a_label_or_says_where_its_value_is_named(axis: Axis) -> None:
    assert axis.label is not None or axis.said_by in LABELS or axis.said_by.startswith("settings")


@EACH
def test_an_axis_changes_the_hash_of_a_trial_unless_it_is_declared_not_to_be_work(axis: Axis) -> None:
    assert (axis.name in TrialSpec.model_fields) == (axis.name not in {"world_size", *OF_PREDICTION})
    if axis.is_layout:
        return
    one, other = (spec(**({"strategy": "zero2"} | fields)) for fields in pair(axis.name))
    assert (one.config_hash != other.config_hash) == (axis.name not in NOT_WORK | OF_PREDICTION)


def test_later_axes_are_numbered_from_one_on_and_their_columns_stand_in_that_order() -> None:
    columns = [
        (axis.since if one.since is None else one.since, one.name) for axis in AXES.values() for one in axis.columns
    ]
    later = sorted(one for one in columns if one[0])
    assert [place for place, _ in later] == list(range(1, len(later) + 1))
    assert [column.name for column in KEY_COLUMNS][-len(later) :] == [name for _, name in later]


def test_a_later_axis_at_its_default_is_not_in_the_hash_of_a_trial() -> None:
    later = [name for name, axis in AXES.items() if axis.since]
    unsaid = TRIAL.model_dump(mode="json", exclude=set(later))
    assert TrialSpec.model_validate(unsaid).config_hash == TRIAL.config_hash == "d375f0a698bb"
    assert {name: DEFAULTS[name] for name in later} == {name: getattr(TRIAL, name) for name in later}


def test_every_row_stands_once_and_every_label_is_a_text() -> None:
    assert len(ROWS) == len(WORK_AXES) + len(ENGINE_AXES)
    assert all(isinstance(label.short(TRIAL) + label.sentence(TRIAL), str) for label in LABELS.values())


ALWAYS_SAID = {"model", "strategy", "offload_optimizer", "micro_batch_size", "gradient_accumulation_steps"}
ALWAYS_SAID |= {"sequence_length", "precision", "optimizer", "activation_checkpointing", "attention"}
ALWAYS_SAID |= {"pipeline_schedule", "evidence"}


@pytest.mark.parametrize("name", [name for name, axis in AXES.items() if axis.label and not axis.is_layout])
def test_an_unusual_value_is_said_and_the_usual_one_of_what_every_trial_has(name: str) -> None:
    usual, other = (spec(**({"strategy": "zero2"} | fields)) for fields in pair(name))
    label = LABELS[name]
    assert bool(label.sentence(usual)) == (name in ALWAYS_SAID)
    assert label.short(other)
    assert bool(label.sentence(other)) == (name != "evidence"), "a prediction has a line of its own"
    assert (label.short(other), label.sentence(other)) != (label.short(usual), label.sentence(usual))


def test_a_number_has_bounds_that_its_refusal_names() -> None:
    assert read_axis("micro_batch_size", [1, 2**31 - 1], "axes") == [1, 2**31 - 1]
    for wrong in (0, 2**31):
        with pytest.raises(UserError, match=f"micro_batch_size: {wrong}; choices: an integer from 1 to {2**31 - 1}"):
            read_axis("micro_batch_size", wrong, "axes")
    assert read_axis("hpz_partition_size", [2, None], "axes") == [2, None]
    with pytest.raises(UserError, match="hpz_partition_size: 1; choices: an integer from 2 to "):
        read_axis("hpz_partition_size", 1, "axes")


def test_what_is_usual_is_not_in_a_name_unless_asked_and_what_a_sweep_leaves_out_is_the_trials_own_default() -> None:
    assert {name for name, label in LABELS.items() if label.always} == ALWAYS
    assert {name: getattr(TRIAL, name) for name in DEFAULTS if name in TrialSpec.model_fields} == {
        name: value for name, value in DEFAULTS.items() if name in TrialSpec.model_fields
    }
    assert (AXES["model"].default, AXES["strategy"].default) == (None, None)
    assert AXES["reshard_after_forward"].default is True


def test_what_the_names_of_a_charts_lines_are_silent_about_is_the_usual_value() -> None:
    columns = [column for axis in AXES.values() for column in axis.columns if column.silent is not None]
    assert columns
    assert {column.name: column.silent for column in columns} == {
        column.name: known(column.value)(TRIAL) for column in columns
    }


def test_what_strategies_and_settings_call_axes_are_axes() -> None:
    named = {axis for info in STRATEGIES.values() for axis in info.axes}
    assert named == set(STRATEGY_AXES)
    assert {name for name, axis in AXES.items() if axis.sets_up_engine} <= named
    assert not named & set(LAYOUT)


def test_a_word_that_is_no_axis_is_refused_with_the_nearest_and_the_command_that_lists_all() -> None:
    with pytest.raises(UserError, match=rf"; did you mean 'precision'\? all {len(READERS)}: zerobench sweeps --axes$"):
        read_axis("precison", "bf16", "axes")


def test_evidence_and_what_a_prediction_is_for_say_how_figures_are_come_by() -> None:
    assert set(EVIDENCE_AXES) == OF_PREDICTION | {"evidence"}


def test_what_only_some_names_and_tables_say_of_an_axis_is_declared_in_its_row() -> None:
    names = {column.name for column in KEY_COLUMNS}
    # The one follows from others, the other is what a prediction is for.
    assert not {"global_batch_size", "gpu"} & names
    assert SPEED == ("activation_checkpointing", "attention", "cross_entropy", "compile", "threads_per_rank")
    data = LABELS["data"]
    assert not data.in_sentences
    assert data.short(TRIAL) == data.sentence(TRIAL) == "synthetic data"


@pytest.mark.parametrize(("asked", "shown"), [("ops", "ops"), ("every-2", "every-2"), (True, None), (False, None)])
def test_which_part_is_checkpointed_is_told_where_it_is_a_part(asked: str | bool, shown: str | None) -> None:
    trial = TRIAL.model_copy(update={"activation_checkpointing": asked})
    columns = {column.name: column for column in AXES["activation_checkpointing"].columns}
    told = columns["selective_checkpointing"].value
    assert told is not None
    assert told(trial) == shown
