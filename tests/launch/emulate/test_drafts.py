"""A command with changes: its words stay what they were but for what was changed, where it was."""

import json
from pathlib import Path
from typing import Any

import pytest

from zerobench.launch.emulate.drafts import Draft
from zerobench.launch.emulate.options import Kind, Option

BATCH = Option(dest="batch_size", names=["--batch_size", "-b"], value=8)
FLAG = Option(dest="gradient_checkpointing", names=["--gradient_checkpointing"], value=False, is_flag=True)
LAUNCHERS = Option(dest="mixed_precision", names=["--mixed_precision"], value="no", of_launcher=True)


def config(folder: Path, content: Any, name: str = "ds.json") -> str:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


@pytest.mark.parametrize(("words", "num_arguments", "option", "value", "expected"), [
    (["t.py", "--batch_size", "8"], None, BATCH, 1, ["t.py", "--batch_size", "1"]),
    (["t.py", "--batch_size=8", "--x"], None, BATCH, 1, ["t.py", "--batch_size=1", "--x"]),
    (["t.py", "-b", "8", "y"], None, BATCH, 1, ["t.py", "-b", "1", "y"]),
    (["t.py", "-b", "8", "--batch_size", "4"], None, BATCH, 1, ["t.py", "-b", "8", "--batch_size", "1"]),
    (["t.py"], None, BATCH, 1, ["t.py", "--batch_size", "1"]),
    (["t.py", "y"], None, FLAG, True, ["t.py", "y", "--gradient_checkpointing"]),
    (["t.py", "--gradient_checkpointing", "y"], None, FLAG, True, ["t.py", "--gradient_checkpointing", "y"]),
    (["t.py"], None, BATCH.model_copy(update={"dest": "bf16"}), True, ["t.py", "--batch_size", "True"]),
    (["run", "-b", "3", "t.py", "-b", "8"], 2, BATCH, 1, ["run", "-b", "3", "t.py", "-b", "1"]),
    (["run", "-b", "3", "t.py", "x"], 1, BATCH, 1, ["run", "-b", "3", "t.py", "x", "--batch_size", "1"]),
    (["run", "t.py", "x"], 1, LAUNCHERS, "bf16", ["run", "--mixed_precision", "bf16", "t.py", "x"]),
    (["-b", "8"], None, BATCH, 1, ["-b", "8", "--batch_size", "1"]),  # the command itself is no option
])  # fmt: skip
def test_an_option_is_changed_in_its_place_and_else_added_at_the_end(
    words: list[str], num_arguments: int | None, option: Option, value: Any, expected: list[str]
) -> None:
    made = Draft(tuple(words), options=(option,), num_arguments=num_arguments).with_option(option, value)
    assert list(made.words) == expected
    assert [known.value for known in made.options] == [value]


def test_what_was_added_is_the_scripts_too_so_that_the_next_change_finds_it() -> None:
    start = Draft(("run", "t.py", "x"), options=(BATCH, FLAG), num_arguments=1)
    again = start.with_option(BATCH, 4).with_option(FLAG, True).with_option(BATCH, 2)
    assert again.words == ("run", "t.py", "x", "--batch_size", "2", "--gradient_checkpointing")
    assert again.num_arguments == 4
    assert start.words == ("run", "t.py", "x")


def test_a_launchers_option_moves_the_word_that_names_the_configuration_behind_it(tmp_path: Path) -> None:
    path = config(tmp_path, {"zero_optimization": {}})
    behind = Draft.of(["run", "t.py", path], (LAUNCHERS, BATCH), 1)
    before = Draft.of(["run", "--ds", path, "t.py", "x"], (LAUNCHERS, BATCH), 1)
    for draft in (behind, before):
        made = draft.with_option(LAUNCHERS, "bf16")
        assert made.words[made.ds_word or 0] == path
    (tmp_path / "new").mkdir()
    assert before.with_option(LAUNCHERS, "bf16").command(tmp_path / "new") == [
        "run", "--ds", str(tmp_path / "new" / "ds_config.json"), "--mixed_precision", "bf16", "t.py", "x"
    ]  # fmt: skip


@pytest.mark.parametrize("written", ["{}", "--deepspeed={}"])
def test_the_changed_configuration_is_written_beside_and_named_in_its_place(tmp_path: Path, written: str) -> None:
    path = config(tmp_path, {"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}})
    draft = Draft.of(["t.py", written.format(path), "--last"])
    folder = tmp_path / "made"
    folder.mkdir()
    made = draft.with_ds({"zero_optimization": {"stage": 2}})
    assert made.command(folder) == ["t.py", written.format(folder / "ds_config.json"), "--last"]
    assert json.loads((folder / "ds_config.json").read_text()) == {
        "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}
    }  # fmt: skip
    assert (draft.stage, made.stage) == (1, 2)


@pytest.mark.parametrize(("content", "is_one"), [
    ({"zero_optimization": {}}, True), ({"train_batch_size": 8}, True), ({"train_micro_batch_size_per_gpu": 1}, True),
    ({"model_type": "gpt2"}, False), ([1], False), ("torn{", False), ("[" * 100_000, False),
])  # fmt: skip
def test_a_file_is_a_configuration_of_deepspeed_by_its_keys(tmp_path: Path, content: Any, is_one: bool) -> None:
    assert (Draft.of(["t.py", config(tmp_path, content)]).ds is not None) is is_one
    assert Draft.of(["t.py", config(tmp_path, content, "ds.txt")]).ds is None
    assert Draft.of(["t.py", str(tmp_path / "nothing.json")]).ds is None


def test_the_first_configuration_counts_and_the_command_itself_is_none(tmp_path: Path) -> None:
    one, other = (config(tmp_path, {"train_batch_size": size}, f"{size}.json") for size in (1, 2))
    assert Draft.of([one, other]).number("train_batch_size") == 2
    assert Draft.of(["t.py", one, other]).number("train_batch_size") == 1


@pytest.mark.parametrize(("ds", "stage"), [
    (None, None), ({}, 0), ({"zero_optimization": {}}, 0), ({"zero_optimization": {"stage": 3}}, 3),
    ({"zero_optimization": {"stage": "auto"}}, None), ({"zero_optimization": 3}, None),
])  # fmt: skip
def test_the_stage_is_known_where_a_number_says_it(ds: dict[str, Any] | None, stage: int | None) -> None:
    assert Draft(("t.py",), ds).stage == stage


@pytest.mark.parametrize(("section", "is_offloaded"), [
    ({"device": "cpu"}, True), ({"device": "nvme"}, True), ({"device": "none"}, False), ({"device": None}, False),
    ({}, False), (None, False), ("cpu", False),
])  # fmt: skip
def test_states_are_offloaded_where_their_section_names_a_device(section: Any, is_offloaded: bool) -> None:
    draft = Draft(("t.py",), {"zero_optimization": {"offload_param": section}})
    assert draft.is_offloaded("offload_param") is is_offloaded
    assert draft.offloaded("offload_param") == (section if is_offloaded else {})
    assert not draft.is_offloaded("offload_optimizer")


@pytest.mark.parametrize(("value", "number"), [(4, 4), (0, 0), ("auto", None), (True, None), (1.0, None), (None, None)])
def test_a_number_of_the_configuration_is_a_whole_one(value: Any, number: int | None) -> None:
    assert Draft(("t.py",), {"train_batch_size": value}).number("train_batch_size") == number
    assert Draft(("t.py",)).number("train_batch_size") is None


def test_of_several_options_of_a_kind_the_one_is_taken_whose_name_tells_most() -> None:
    plain, trainers = (Option(dest=d, names=[f"--{d}"]) for d in ("batch_size", "per_device_train_batch_size"))
    draft = Draft(("t.py",), options=(plain, FLAG, trainers))
    assert draft.option(Kind.BATCH) is trainers
    assert draft.option(Kind.CHECKPOINTING) is FLAG
    assert draft.option(Kind.BF16) is None


def test_what_a_script_said_of_its_options_counts_before_its_words() -> None:
    words = ["t.py", "--batch_size", "4"]
    assert [option.value for option in Draft.of(words, (BATCH,)).options] == [8]
    assert [option.value for option in Draft.of(words).options] == [4]
    assert [option.value for option in Draft.of(words, (LAUNCHERS,)).options] == [4, "no"]
    launched = ["run", "--batch_size", "9", "t.py", "--bf16"]
    assert [option.dest for option in Draft.of(launched, (), 1).options] == ["bf16"]
    assert Draft.of(["--batch_size", "9"], (), 2).options == ()


def test_a_changed_configuration_leaves_the_one_that_it_came_from_as_it_was() -> None:
    draft = Draft(("t.py",), {"a": {"b": 1}})
    made = draft.with_ds({"c": 2})
    assert made.ds == {"a": {"b": 1}, "c": 2}
    assert made.ds["a"] is not (draft.ds or {})["a"]
    assert Draft(("t.py",)).with_ds({"c": 2}).ds == {"c": 2}
