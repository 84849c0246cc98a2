"""What a sweep file may say, how the command line lies over it, and that it can be read again."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.config.machines import CPU
from tests.tools.at_least_one import at_least_one
from tests.tools.refusals import one_line
from zerobench.common.errors import UserError
from zerobench.config.axes.axes import READERS
from zerobench.config.sweep.expand import expand
from zerobench.config.sweep.sweep import Sweep, SweepFile, load_sweep, shipped_sweeps
from zerobench.config.trial.trial import TrialSpec

BASE = {"model": "llama-10m", "strategy": "zero1"}


def sweep(folder: Path, axes: dict[str, Any] | None = None, sets: Sequence[str] = (), **fields: Any) -> Sweep:
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump({"axes": BASE | (axes or {}), **fields}, sort_keys=False))
    return load_sweep(str(file), sets)


def trials(sweep: Sweep) -> list[TrialSpec]:
    return [planned.trial for planned in expand(sweep, CPU)]


def test_a_sweep_of_model_and_strategy_alone_has_the_defaults_of_a_trial(tmp_path: Path):
    [trial] = trials(sweep(tmp_path))
    plain = TrialSpec(model=trial.model, strategy="zero1", gpus_per_node=2)
    assert trial == plain


def test_a_sweep_is_named_after_its_file_unless_it_names_itself(tmp_path: Path):
    assert sweep(tmp_path).name == "mine"
    assert sweep(tmp_path, name="other").name == "other"


def test_what_is_the_same_in_every_trial_reaches_every_trial(tmp_path: Path):
    one = sweep(
        tmp_path,
        {"strategy": ["zero1", "zero2"]},
        hyperparameters={"learning_rate": "1e-4", "seed": 7},
        steps={"timed": 3},
        timeout_s=60,
        trust_remote_code=True,
    )
    for trial in at_least_one(trials(one)):
        assert (trial.hyperparameters.learning_rate, trial.hyperparameters.seed) == (1e-4, 7)
        assert (trial.steps.timed, trial.timeout_s, trial.trust_remote_code) == (3, 60.0, True)


@pytest.mark.parametrize("number", ["4", "4e0", 4, 4.0])
def test_numbers_may_be_written_in_any_notation(tmp_path: Path, number: object):
    [trial] = trials(sweep(tmp_path, {"micro_batch_size": number}))
    assert trial.micro_batch_size == 4


def test_deepspeed_keys_may_be_short_or_nested_and_their_lists_multiply(tmp_path: Path):
    overrides = {"reduce_bucket_size": ["5e7", 500000000], "zero_optimization": {"overlap_comm": [True, False]}}
    found = [trial.ds_config for trial in trials(sweep(tmp_path, {"ds_config": overrides}))]
    bucket, overlap = "zero_optimization.reduce_bucket_size", "zero_optimization.overlap_comm"
    assert found == [{bucket: size, overlap: on} for size in (50_000_000, 500_000_000) for on in (True, False)]


def test_alternatives_of_the_whole_ds_config_are_a_list_of_mappings(tmp_path: Path):
    alternatives = [{}, {"reduce_bucket_size": [1, 2]}]
    found = [trial.ds_config for trial in trials(sweep(tmp_path, {"ds_config": alternatives}))]
    key = "zero_optimization.reduce_bucket_size"
    assert found == [{}, {key: 1}, {key: 2}]


def test_a_model_may_be_a_shape_written_out(tmp_path: Path):
    shape = {"family": "llama", "name": "tiny", "num_layers": 2, "hidden_size": 64, "num_heads": 2}
    [trial] = trials(sweep(tmp_path, {"model": [shape]}))
    assert (trial.model.name, trial.model.hf_config["hidden_size"]) == ("tiny", 64)


def test_relative_paths_start_from_the_sweep_file_and_set_ones_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    there, here = tmp_path / "there", tmp_path / "here"
    for folder in (there, here):
        folder.mkdir()
        (folder / "tokens.bin").write_bytes(b"\0" * 64)
        (folder / "ds.json").write_text("{}")
        config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "vocab_size": 99}
        (folder / "tiny.json").write_text(json.dumps(config))
    monkeypatch.chdir(here)
    axes = {"model": "tiny.json", "strategy": "zero3", "ds_config_file": "ds.json", "offload_optimizer": "nvme"}
    fields: dict[str, Any] = {"data": {"kind": "tokens", "path": "tokens.bin"}}
    [trial] = trials(sweep(there, axes | {"nvme_path": "swap"}, **fields))
    assert (trial.nvme_path, trial.ds_config_file) == (str(there / "swap"), str(there / "ds.json"))
    assert trial.data.path == str(there / "tokens.bin")
    sets = ["nvme_path=swap", "data.path=tokens.bin", "model=./tiny.json", "ds_config_file=ds.json"]
    [trial] = trials(sweep(there, axes, sets, **fields))
    assert (trial.nvme_path, trial.ds_config_file) == (str(here / "swap"), str(here / "ds.json"))
    assert trial.data.path == str(here / "tokens.bin")


def test_a_shipped_deepspeed_config_is_named_without_a_folder(tmp_path: Path):
    [trial] = trials(sweep(tmp_path, {"ds_config_file": "zero1.json"}))
    assert trial.ds_config_file == "zero1.json"


def test_a_setting_replaces_an_axis_at_its_place(tmp_path: Path):
    axes = {"micro_batch_size": [1, 2], "sequence_length": [64, 128]}
    found = trials(sweep(tmp_path, axes, ["micro_batch_size=4,8"]))
    assert [(t.micro_batch_size, t.sequence_length) for t in found] == [(4, 64), (4, 128), (8, 64), (8, 128)]


def test_a_setting_reaches_one_deepspeed_key_in_every_alternative(tmp_path: Path):
    axes = {"ds_config": [{"reduce_bucket_size": 1, "overlap_comm": True}, {}]}
    found = trials(sweep(tmp_path, axes, ["ds_config.zero_optimization.reduce_bucket_size=5e7,6e7"]))
    bucket, overlap = "zero_optimization.reduce_bucket_size", "zero_optimization.overlap_comm"
    assert [t.ds_config for t in found] == [
        {bucket: 50_000_000, overlap: True},
        {bucket: 60_000_000, overlap: True},
        {bucket: 50_000_000},
        {bucket: 60_000_000},
    ]


def test_a_set_world_size_takes_the_place_of_nodes_and_gpus_per_node(tmp_path: Path):
    axes = {"num_nodes": 1, "gpus_per_node": 2}
    assert [t.world_size for t in trials(sweep(tmp_path, axes, ["world_size=1,4"]))] == [1, 4]


def test_set_nodes_keep_the_gpus_per_node_and_take_the_place_of_a_world_size(tmp_path: Path):
    for axes in ({"num_nodes": 1, "gpus_per_node": 3}, {"world_size": 5, "gpus_per_node": 3}):
        [trial] = trials(sweep(tmp_path, axes, ["num_nodes=4"]))
        assert (trial.num_nodes, trial.gpus_per_node) == (4, 3)


def test_an_included_point_of_more_nodes_keeps_the_gpus_per_node(tmp_path: Path):
    more = sweep(tmp_path, {"num_nodes": 1, "gpus_per_node": 3}, [], include=[{"num_nodes": 4}])
    assert [(t.num_nodes, t.gpus_per_node) for t in trials(more)] == [(1, 3), (4, 3)]


def test_settings_reach_what_is_the_same_in_every_trial(tmp_path: Path):
    sets = [
        "hyperparameters.learning_rate=1e-4",
        "steps.timed=2",
        "repeats=2",
        "timeout_s=5",
        "name=n",
        "data.kind=synthetic",
    ]
    one = sweep(tmp_path, {}, sets)
    assert one.name == "n"
    assert [t.repeat for t in trials(one)] == [0, 1]
    assert trials(one)[0].hyperparameters.learning_rate == 1e-4
    assert trials(one)[0].timeout_s == 5


def test_a_set_axis_counts_on_a_machine_without_gpus_too(tmp_path: Path):
    one = sweep(
        tmp_path, {}, ["model=gpt2-10m", "ds_config.overlap_comm=true"], on_cpu={"model": "llama-20m", "ds_config": {}}
    )
    assert [(t.model.name, t.ds_config) for t in trials(one)] == [
        ("gpt2-10m", {"zero_optimization.overlap_comm": True})
    ]


def test_brackets_keep_commas_within_a_set_value(tmp_path: Path):
    shape = "{family: gpt2, num_layers: 1, hidden_size: 32, num_heads: 1, name: a}"
    assert [t.model.name for t in trials(sweep(tmp_path, {}, [f"model={shape},llama-10m"]))] == ["a", "llama-10m"]


def test_of_two_settings_of_one_axis_the_last_counts(tmp_path: Path):
    assert [t.strategy for t in trials(sweep(tmp_path, {}, ["strategy=zero1", "strategy=zero2"]))] == ["zero2"]


@pytest.mark.parametrize("name", list(shipped_sweeps()))
def test_the_document_of_a_sweep_reads_back_to_the_same_trials_from_elsewhere(name: str, tmp_path: Path):
    sets = ["sequence_length=64", "ds_config.overlap_comm=true", "hyperparameters.seed=5"]
    before = load_sweep(name, sets, ["strategy=zero3"], 2)
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(before.document, sort_keys=False))
    after = load_sweep(str(tmp_path / "again.yaml"))
    assert expand(after, CPU) == expand(before, CPU)
    assert after.document == before.document


def test_every_shipped_sweep_says_what_it_shows():
    for name in at_least_one(shipped_sweeps()):
        one = load_sweep(name)
        assert one.name == name
        assert len(one.description) > 80


def test_the_docstring_names_every_axis_and_field_of_a_sweep_file():
    from zerobench.config.sweep import sweep as module

    example = yaml.safe_load((module.__doc__ or "").split("\n\n")[1])
    assert set(example) == set(SweepFile.model_fields)
    assert set(example["axes"]) | {"num_nodes", "gpus_per_node"} == set(READERS)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"axis": {}}, "field: 'axis' is not known; did you mean 'axes'? choices: name,"),
        (
            {"hyperparameters": {"lerning_rate": 1}},
            "hyperparameters: lerning_rate: unknown field; did you mean 'learning_rate'?",
        ),
        ({"hyperparameters": {"learning_rate": True}}, "hyperparameters: learning_rate: true is not a number"),
        ({"hyperparameters": {"learning_rate": "inf"}}, "hyperparameters: learning_rate: inf is not a finite number"),
        ({"hyperparameters": {"seed": -1}}, "hyperparameters: seed: -1 is out of range"),
        ({"hyperparameters": 3}, "hyperparameters: 3: not a mapping; choices: learning_rate,"),
        ({"steps": {"timed": 0}}, "steps: timed: Input should be greater than or equal to 1 (got 0)"),
        ({"timeout_s": 1e9}, "timeout_s: Input should be less than or equal to 2592000"),
        ({"repeats": True}, "repeats: true is not a number"),
        ({"include": {"strategy": "zero1"}}, "include: Input should be a valid list (got {'strategy': 'zero1'})"),
        ({"include": [{}]}, "include[0]: {} is empty"),
        ({"exclude": [{"strategi": "zero1"}]}, "exclude[0]: axis: 'strategi' is not known; did you mean 'strategy'?"),
        ({"on_cpu": {"precision": "int8"}}, "on_cpu: precision: 'int8' is not known; choices: fp32, bf16, fp16"),
        ({"data": {"kind": "tokens"}}, "data: path is missing; data of kind tokens needs it"),
        ({"data": {"kind": "text", "path": "/dev/null"}}, "data: tokenizer is missing"),
        ({"data": {"kind": "tokens", "path": "/no/such"}}, "data: path: '/no/such': no such file"),
        ({"data": {"path": "/dev/null"}}, "data: path: '/dev/null' does not apply to kind synthetic"),
        ({"only": ["strategy="]}, "--only: 'strategy=' has no value"),
        ({"only": ["world=2"]}, "--only: axis: 'world' is not known; did you mean 'world_size'?"),
    ],
)
def test_a_mistake_in_a_field_is_one_line_with_file_field_and_choices(
    tmp_path: Path, fields: dict[str, Any], told: str
):
    with one_line(told, "" if "--only" in told else str(tmp_path / "mine.yaml")):
        sweep(tmp_path, **fields)


@pytest.mark.parametrize(
    ("axes", "told"),
    [
        ({"model": "lama-10m"}, "axes: model: 'lama-10m' is not known; did you mean 'llama-10m'?"),
        ({"strategy": []}, "axes: strategy: [] is empty"),
        ({"modell": 1}, "axes: axis: 'modell' is not known; did you mean 'model'?"),
        ({"micro_batch_size": 0}, "axes: micro_batch_size: 0; choices: an integer from 1"),
        ({"micro_batch_size": True}, "axes: micro_batch_size: true; choices: an integer from 1"),
        ({"sequence_length": [8, "x"]}, "axes: sequence_length: 'x'; choices"),
        ({"world_size": "all"}, "axes: world_size: 'all'; choices: an integer from 1 to 1048576, or auto"),
        (
            {"activation_checkpointing": "yes"},
            "axes: activation_checkpointing: 'yes' is not known; choices: true, false",
        ),
        ({"offload_param": "disk"}, "axes: offload_param: 'disk' is not known; choices: none, cpu, nvme"),
        ({"nvme_path": 3}, "axes: nvme_path: 3; choices: a path, or null"),
        ({"ds_config": {"reduce_buckt_size": 1}}, "did you mean 'zero_optimization.reduce_bucket_size'?"),
        ({"ds_config": {"stage": []}}, "ds_config: zero_optimization.stage: [] is empty"),
        ({"ds_config": {"stage": 1, "zero_optimization": {"stage": 2}}}, "zero_optimization.stage is given twice"),
        ({"ds_config_file": "absent.json"}, "ds_config_file: "),
        (
            {"micro_batch_size": list(range(1, 200)), "sequence_length": list(range(1, 200))},
            "39601 points; at most 10000",
        ),
    ],
)
def test_a_mistake_in_an_axis_is_one_line_with_axis_value_and_choices(tmp_path: Path, axes: dict[str, Any], told: str):
    with one_line(told):
        sweep(tmp_path, axes)


@pytest.mark.parametrize("axis", ["model", "strategy"])
def test_a_sweep_without_model_or_strategy_is_refused(tmp_path: Path, axis: str):
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({"axes": {k: v for k, v in BASE.items() if k != axis}}))
    with pytest.raises(UserError, match=f"axes: {axis} is missing"):
        load_sweep(str(tmp_path / "s.yaml"))


def test_what_a_file_lacks_may_be_set(tmp_path: Path):
    (tmp_path / "s.yaml").write_text("axes: {strategy: zero1}")
    assert trials(load_sweep(str(tmp_path / "s.yaml"), ["model=llama-10m"]))


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("micro_batch_size", "--set: 'micro_batch_size' is not name=value"),
        ("micro_batch_sise=1", "--set: name: 'micro_batch_sise' is not known; did you mean 'micro_batch_size'?"),
        ("hyperparameters.lr=1", "--set: hyperparameters: 'lr' is not known; choices: learning_rate,"),
        ("steps.timed=1,2", "--set steps.timed: '1,2' is a list; give one value"),
        ("strategy=", "--set strategy: '' has no value"),
        ("strategy=zer1", "with --set: axes: strategy: 'zer1' is not known; did you mean 'zero1'?"),
        ("model={a: [}", "--set model: line 1: invalid YAML"),
        ("ds_config.overlap_com=1", "did you mean 'zero_optimization.overlap_comm'?"),
        ("include=[]", "--set: name: 'include' is not known"),
    ],
)
def test_a_mistake_in_a_setting_is_one_line_that_says_so(tmp_path: Path, setting: str, told: str):
    with one_line(told):
        sweep(tmp_path, {}, [setting])


@pytest.mark.parametrize(
    "name", ["quikstart", "no/such.yaml", "such.yaml", "", "/", "a\0b", "\udc80", "~nobody", "x" * 5000]
)
def test_a_sweep_that_is_not_there_is_answered_with_the_shipped_ones(name: str):
    with one_line(match=r"sweep: .*(quickstart|all 16: zerobench sweeps)"):
        load_sweep(name)


def test_a_sweep_file_may_have_any_name_that_a_file_can_have(tmp_path: Path):
    file = tmp_path / ("\udc80\n" + "x" * 150 + ".yaml")
    file.write_text(yaml.safe_dump({"axes": BASE}))
    one = load_sweep(str(file))
    assert one.name.isprintable()
    assert len(one.name) == 100
    assert json.dumps(one.document).encode()
    file.write_text("axes: 1")
    with one_line():
        load_sweep(str(file))


def test_a_file_that_is_no_sweep_is_refused_by_what_is_wrong_with_it(tmp_path: Path):
    file = tmp_path / "s.yaml"
    for content, told in [
        (b"\xff\xfe", "not UTF-8 text"),
        (b"- 1", "a sweep is a mapping with the keys name,"),
        (b"a: 1\na: 2", "line 2: invalid YAML: the key 'a' is given twice"),
        (b"#" * 1_000_001, "1000001 bytes, too large"),
    ]:
        file.write_bytes(content)
        with pytest.raises(UserError, match=told):
            load_sweep(str(file))


def test_a_key_with_a_blank_that_nobody_sees_is_shown_in_quotes(tmp_path: Path):
    with pytest.raises(UserError, match=r"'timed ': unknown field; did you mean 'timed'\?"):
        sweep(tmp_path, steps={"timed ": 3})
