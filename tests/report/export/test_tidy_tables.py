"""The tidy tables: their names and dtypes are a public interface."""

import itertools
import os
import textwrap
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pa_parquet
import pytest

from tests.report.documents.run import predicted_trial
from tests.report.export.at_hand import errors_frame, memory_frame, memory_table, trials_frame
from tests.report.sample_predictions import foretelling
from tests.report.sample_run import RUN_ID, completed_trial, rank_record, sample_trials, skipped_trial, spec, write_run
from tests.tools.at_least_one import at_least_one
from zerobench.common.errors import UserError
from zerobench.records.store import load_run
from zerobench.report.export import schema
from zerobench.report.export.sinks import ROWS_PER_GROUP, WRITER, table_files
from zerobench.report.export.tidy_tables import read_frame, tables_stand, write_tables

KEYS = """
    run_id:string trial_id:string config_hash:string repeat:Int64 model:string num_params:Int64 strategy:string
    zero_stage:Int64 offload_optimizer:string offload_param:string num_nodes:Int64 world_size:Int64
    micro_batch_size:Int64 gradient_accumulation_steps:Int64 sequence_length:Int64 precision:string optimizer:string
    activation_checkpointing:boolean attention:string evidence:string bucket_bytes:Int64 compression:string
    reshard_after_forward:boolean consistency:string batch_ramp:string hpz_partition_size:Int64
    quantized_weights:boolean quantized_gradients:boolean mics_shard_size:Int64 checkpoint:string tf_strategy:string
    pipeline_schedule:string threads_per_rank:Int64 cross_entropy:string compile:string
    zero_init:boolean selective_checkpointing:string
    adapter:string frozen:string weights:string
"""
COLUMNS = {
    "memory": KEYS
    + """
    rank:Int64 role:string step:string phase:string place:string category:string live_bytes:Int64
    at_peak_bytes:Int64 own_peak_bytes:Int64 at_tensor_peak_bytes:Int64
""",
    "trials": KEYS
    + """
    status:string reason:string step_time_s_median:Float64 forward_s:Float64 backward_s:Float64 step_s:Float64
    samples_per_s:Float64 tokens_per_s:Float64 tflops_per_gpu:Float64 mfu:Float64 device_peak_bytes:Int64
    nvml_peak_bytes:Int64 host_peak_bytes:Int64 energy_joules:Float64 nvme_read_bytes_per_s:Float64
    nvme_write_bytes_per_s:Float64 loss_first:Float64 loss_last:Float64 loss_parity:Float64 norm_parity:Float64
    nodes:string job:string step_bound_s:Float64 expected_step_s:Float64 expected_step_low_s:Float64
    expected_step_high_s:Float64
""",
    "errors": KEYS
    + """
    rank:Int64 step:string phase:string place:string category:string quantity:string measured_bytes:Int64
    predicted_bytes:Int64 error:Float64 measured_min_bytes:Int64 measured_max_bytes:Int64 against:string
""",
    "nvml": """
    run_id:string trial_id:string hostname:string gpu_uuid:string t_s:Float64 phase:string used_bytes:Int64
    reserved_bytes:Int64 power_watts:Float64 node:Int64
""",
}
"""What readers of the tables rely on, written out: a change here is a change of the public interface."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample run with its tables written."""
    path = tmp_path_factory.mktemp("reports") / RUN_ID
    write_run(path, sample_trials())
    write_tables(load_run(path))
    return path


def test_the_tables_are_seven_files_in_the_runs_folder(tmp_path: Path) -> None:
    write_run(tmp_path / "run", sample_trials()[:2])
    both = {f"{table}.{suffix}" for table in ("memory", "trials", "errors") for suffix in ("parquet", "csv")}
    names = {*both, "nvml.parquet"}
    assert {path.name for path in write_tables(load_run(tmp_path / "run"))} == names
    assert names < {path.name for path in (tmp_path / "run").iterdir()}
    assert not list((tmp_path / "run").glob(".*"))


@pytest.mark.parametrize("table", COLUMNS)
def test_columns_have_the_names_order_and_types_that_were_promised(folder: Path, table: str) -> None:
    frame = read_frame(folder / f"{table}.parquet")
    assert [f"{name}:{dtype}" for name, dtype in frame.dtypes.items()] == COLUMNS[table].split()


@pytest.mark.parametrize("table", ["memory", "trials"])
def test_csv_and_parquet_hold_the_same(folder: Path, table: str) -> None:
    parquet = read_frame(folder / f"{table}.parquet")
    csv = pd.read_csv(folder / f"{table}.csv", dtype={name: str(kind) for name, kind in parquet.dtypes.items()})
    pd.testing.assert_frame_equal(csv, parquet, check_exact=True)


def test_bytes_are_written_as_whole_numbers_though_some_are_missing(folder: Path) -> None:
    rows = (folder / "trials.csv").read_text().splitlines()
    column = rows[0].split(",").index("device_peak_bytes")
    values = [row.split(",")[column] for row in rows[1:10]]
    assert all(value.isdigit() for value in values)


def test_the_categories_of_each_phase_add_up_to_its_total(folder: Path) -> None:
    frame = read_frame(folder / "memory.parquet")
    keys = ["trial_id", "rank", "step", "phase", "place"]
    is_total = frame["category"] == "total"
    for column in ("live_bytes", "at_peak_bytes"):
        parts = frame[~is_total].groupby(keys)[column].sum()
        totals = frame[is_total].groupby(keys)[column].sum()
        pd.testing.assert_series_equal(parts, totals)


def test_the_readme_of_reports_finds_the_peak_and_its_parts(folder: Path) -> None:
    readme = (Path(__file__).parents[3] / "reports" / "README.md").read_text()
    code = textwrap.dedent(readme[readme.index("    import pandas") : readme.index("`memory`: `live_bytes`")])
    names: dict[str, pd.DataFrame] = {}
    exec(code.replace("reports/<run>", str(folder)), names)  # noqa: S102 -- the project's own documentation
    parts = names["parts"]
    pd.testing.assert_series_equal(
        parts.drop(columns="total").sum(axis=1), parts["total"], check_names=False, check_dtype=False
    )
    assert len(parts) == 1 + 8 * 8


def test_every_trial_has_a_row_whatever_became_of_it(folder: Path) -> None:
    frame = read_frame(folder / "trials.parquet").set_index("trial_id")
    assert list(frame.index) == [trial.spec.trial_id for trial in sample_trials()]
    assert frame["status"].value_counts().to_dict() == {
        "completed": 9,
        "out_of_device_memory": 1,
        "timeout": 1,
        "skipped": 1,
    }
    unfinished = frame[frame["status"] != "completed"]
    assert unfinished["reason"].notna().all()
    assert unfinished["num_params"].notna().all()
    assert unfinished.loc[:, "step_time_s_median":"device_peak_bytes"].isna().all(axis=None)


def test_the_rows_say_what_the_views_say(folder: Path) -> None:
    single, row = (read_frame(folder / "trials.parquet").iloc[at] for at in (0, 1))
    assert (single["strategy"], single["zero_stage"] is pd.NA) == ("single", True)
    assert (row["strategy"], row["zero_stage"], row["world_size"], row["evidence"]) == ("zero0", 0, 8, "measured")
    assert row["tokens_per_s"] == pytest.approx(row["samples_per_s"] * 1024)
    assert row["loss_parity"] == 0
    assert row["energy_joules"] == pytest.approx(8 * 400 * 5 * 0.231)
    assert row["nvml_peak_bytes"] > row["device_peak_bytes"]


@pytest.mark.parametrize(
    ("strategy", "axis", "values"),
    [
        ("ddp", "bucket_bytes", [1_000_000, 2_000_000]),
        ("ddp", "compression", ["none", "fp16"]),
        ("fsdp", "reshard_after_forward", [True, False]),
        ("parameter-server", "consistency", ["sync", "async"]),
        ("zero3", "quantized_weights", [False, True]),
        ("zero3", "hpz_partition_size", [2, 4]),
        ("zero3", "zero_init", [True, False]),
        ("zero3", "weights", ["drawn", "loaded"]),
        ("pipeline", "pipeline_schedule", ["1f1b", "gpipe"]),
    ],
)
def test_trials_that_differ_in_one_axis_alone_are_told_apart(
    tmp_path: Path, strategy: str, axis: str, values: list[object]
) -> None:
    write_run(tmp_path / "run", [skipped_trial(spec(strategy, **{axis: value}), "a rule") for value in values])
    frame = trials_frame(load_run(tmp_path / "run").trials())
    assert frame[axis].tolist() == values
    others = frame.drop(columns=["trial_id", "config_hash", axis])
    assert len(others.drop_duplicates()) == 1


def test_frames_of_trials_at_hand_are_those_of_the_files(folder: Path) -> None:
    trials = sample_trials()
    pd.testing.assert_frame_equal(memory_frame(trials), read_frame(folder / "memory.parquet"))
    at_hand = trials_frame(trials)
    assert at_hand["energy_joules"].isna().all()
    written = read_frame(folder / "trials.parquet")
    pd.testing.assert_frame_equal(at_hand.drop(columns="energy_joules"), written.drop(columns="energy_joules"))


@pytest.mark.parametrize("evidence", ["simulated", "formula"])
def test_a_trial_predicted_for_a_gpu_has_the_least_time_of_a_step(tmp_path: Path, evidence: str) -> None:
    predicted = predicted_trial(spec("zero2", evidence=evidence, prediction={"gpu": "H200 SXM"}))
    write_run(tmp_path / "run", [predicted, completed_trial(spec("zero2"))], samples=False)
    write_tables(load_run(tmp_path / "run"))
    bounds = pd.read_csv(tmp_path / "run" / "trials.csv").set_index("evidence")["step_bound_s"]
    assert 1e-4 < bounds[evidence] < 10
    assert bool(bounds.isna()["measured"])


def test_a_run_without_trials_has_tables_without_rows(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [])
    write_tables(load_run(tmp_path / "run"))
    for table, columns in COLUMNS.items():
        frame = read_frame(tmp_path / "run" / f"{table}.parquet")
        assert [f"{name}:{dtype}" for name, dtype in frame.dtypes.items()] == columns.split()
        assert len(frame) == 0
    assert (tmp_path / "run" / "trials.csv").read_text() == ",".join(schema.TRIALS) + "\n"


def test_errors_have_a_row_for_each_figure_that_was_measured_and_predicted(tmp_path: Path) -> None:
    real, said = (
        completed_trial(spec("zero1", gpus_per_node=2)),
        foretelling(completed_trial(spec("zero1", gpus_per_node=2)), "solo", 1.5),
    )
    write_run(tmp_path / "run", [said, completed_trial(spec("zero2")), real])
    write_tables(load_run(tmp_path / "run"))
    frame = read_frame(tmp_path / "run" / "errors.parquet")
    pd.testing.assert_frame_equal(frame, errors_frame([said, real]))
    csv = pd.read_csv(tmp_path / "run" / "errors.csv", dtype={name: str(kind) for name, kind in frame.dtypes.items()})
    pd.testing.assert_frame_equal(csv, frame, check_exact=True)
    assert set(frame["trial_id"]) == {said.spec.trial_id}
    assert set(frame["evidence"]) == {"solo"}
    assert set(frame["quantity"]) == {"live", "peak", "reserved", "used"}
    where = "step == 'steady' and phase == 'forward' and place == 'device' and quantity == 'peak' and category == "
    [row] = frame.query(f"{where} 'activations'").to_dict("records")
    assert row["error"] == pytest.approx(0.5)
    assert row["predicted_bytes"] == row["measured_bytes"] * 1.5
    [total] = frame.query(f"{where} 'total'").to_dict("records")
    assert total["predicted_bytes"] - total["measured_bytes"] == row["predicted_bytes"] - row["measured_bytes"]


def test_errors_are_empty_where_losses_disagree(tmp_path: Path) -> None:
    single = completed_trial(spec("single", gpus_per_node=1, gradient_accumulation_steps=8))
    wrong = completed_trial(spec("zero1"), loss_error=0.31)
    write_run(tmp_path / "run", [single, wrong, foretelling(wrong, "solo", 1.0)])
    write_tables(load_run(tmp_path / "run"))
    assert len(read_frame(tmp_path / "run" / "errors.parquet")) == 0
    assert (tmp_path / "run" / "errors.csv").read_text() == ",".join(schema.ERRORS) + "\n"


def test_long_tables_are_written_in_row_groups(tmp_path: Path) -> None:
    table = memory_table(completed_trial(spec("zero1")))
    times = 1 + 250_000 // table.num_rows
    with table_files(schema.MEMORY, tmp_path / "memory.parquet", tmp_path / "memory.csv") as sink:
        for one in itertools.repeat(table, times):
            sink.add(one)
    file = pa_parquet.ParquetFile(tmp_path / "memory.parquet")
    sizes = [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)]
    assert sum(sizes) == times * table.num_rows
    assert max(sizes) <= ROWS_PER_GROUP
    assert len(sizes) >= 3
    assert (tmp_path / "memory.csv").read_bytes().count(b"\n") == 1 + times * table.num_rows


def test_an_error_leaves_the_older_tables_as_they_were(tmp_path: Path) -> None:
    trial = completed_trial(spec("zero1", gpus_per_node=1))
    folder = write_run(tmp_path / "run", [trial])
    before = {path.name: path.read_bytes() for path in write_tables(load_run(tmp_path / "run"))}
    folder.trial(trial.spec.trial_id).rank_record(0).write_text("{")
    with pytest.raises(UserError, match=r"rank_0\.json"):
        write_tables(load_run(tmp_path / "run"))
    assert {name: (tmp_path / "run" / name).read_bytes() for name in before} == before
    assert not list((tmp_path / "run").glob(".*"))


def test_numbers_beyond_sixty_four_bits_are_an_error_that_names_the_trial(tmp_path: Path) -> None:
    asked = spec("zero1", gpus_per_node=1)
    rank = rank_record(asked, 0)
    rank.memory[0].live_bytes = 2**63
    trial = completed_trial(asked)
    sound = completed_trial(spec("zero2", gpus_per_node=1))
    write_run(tmp_path / "run", [sound, type(trial)(asked, trial.record, [rank])])
    with pytest.raises(UserError, match=asked.trial_id):
        write_tables(load_run(tmp_path / "run"))


def test_commas_and_quotes_in_names_survive_the_csv(tmp_path: Path) -> None:
    name = 'a "model", and\nmore'
    shape = completed_trial(spec("zero1", gpus_per_node=1)).spec.model.model_copy(update={"name": name})
    write_run(tmp_path / "run", [completed_trial(spec("zero1", gpus_per_node=1, model=shape))])
    write_tables(load_run(tmp_path / "run"))
    assert set(pd.read_csv(tmp_path / "run" / "memory.csv")["model"]) == {name}


def test_a_trial_without_rows_leaves_nothing_before_the_rows_of_the_next(tmp_path: Path) -> None:
    skipped = skipped_trial(spec("zero2", offload_param="cpu"), "offload_param_needs_stage_3")
    path = write_run(tmp_path / "run", [skipped, completed_trial(spec("zero1", gpus_per_node=2))], samples=False).path
    write_tables(load_run(path))
    for name in ("memory.csv", "trials.csv"):
        lines = (path / name).read_bytes().split(b"\n")
        assert lines[1].startswith(b'"sample_'), name
        assert b"\0" not in b"".join(lines)


def test_trials_beyond_one_batch_are_all_there_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = [completed_trial(spec(f"zero{stage}", gpus_per_node=1), loss_noise=1e-3) for stage in range(4)]
    whole = trials_frame(trials)
    monkeypatch.setattr("zerobench.report.export.tidy_tables._ROWS_AT_ONCE", 3)
    pd.testing.assert_frame_equal(trials_frame(trials), whole)
    path = write_run(tmp_path / "run", trials, samples=False).path
    write_tables(load_run(path))
    pd.testing.assert_frame_equal(read_frame(path / "memory.parquet"), memory_frame(trials))
    assert b"\0" not in (path / "trials.csv").read_bytes()
    assert list(read_frame(path / "trials.parquet")["loss_parity"].dropna()) == pytest.approx([1e-3, 2e-3, 3e-3])


def test_a_completed_trial_has_its_first_and_last_loss_and_its_host_peak_and_a_failed_one_none() -> None:
    trials = sample_trials()
    for trial, row in at_least_one(zip(trials, trials_frame(trials).to_dict("records"), strict=True)):
        ended = trial.record.status == "completed"
        losses = trial.ranks[0].losses if ended else [None]
        assert (pd.notna(row["loss_first"]), pd.notna(row["host_peak_bytes"])) == (ended, ended)
        if ended:
            assert (row["loss_first"], row["loss_last"]) == (losses[0], losses[-1])


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A run whose tables were written after its trials had ended."""
    write_run(tmp_path / RUN_ID, sample_trials())
    write_tables(load_run(tmp_path / RUN_ID))
    assert tables_stand(load_run(tmp_path / RUN_ID))
    return tmp_path / RUN_ID


def a_newer_record(run: Path) -> None:
    later_ns = (run / "nvml.parquet").stat().st_mtime_ns + 1
    os.utime(next(run.glob("trials/*/record.json")), ns=(later_ns, later_ns))


def a_trial_set_aside(run: Path) -> None:
    next(run.glob("trials/*/record.json")).unlink()


def a_table_lost(run: Path) -> None:
    (run / "errors.csv").unlink()


def another_version(run: Path) -> None:
    path = run / "trials.parquet"
    table = pa_parquet.read_table(path)
    pa_parquet.write_table(table.replace_schema_metadata({WRITER: b"0.0.1"}), path)


@pytest.mark.parametrize("kept", [0.5, 0])
@pytest.mark.parametrize(
    "name",
    ["memory.csv", "memory.parquet", "trials.csv", "trials.parquet", "errors.csv", "errors.parquet", "nvml.parquet"],
)
def test_a_torn_table_does_not_stand(written: Path, name: str, kept: float) -> None:
    path = written / name
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * kept)])
    assert not tables_stand(load_run(written))


@pytest.mark.parametrize("change", [a_newer_record, a_trial_set_aside, a_table_lost, another_version])
def test_tables_stand_until_a_trial_a_table_or_the_version_changes(
    written: Path, change: Callable[[Path], None]
) -> None:
    change(written)
    assert not tables_stand(load_run(written))
