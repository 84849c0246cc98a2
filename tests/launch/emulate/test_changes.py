"""What is tried where a command does not fit."""

import json

import pytest

from zerobench.launch.emulate.changes import for_device, for_host
from zerobench.launch.emulate.drafts import Draft
from zerobench.launch.emulate.options import Option


def candidates(command, options=(), **known):
    return for_device(Draft.of(command, options), environ=known.pop("environ", {}), **known)


def says(command, options=(), **known):
    return [candidate.says for candidate in candidates(command, options, **known)]


def option(name, value, **more):
    return Option(dest=name, names=[f"--{name}"], value=value, **more)


def written(candidate, folder):
    command = candidate.draft.command(folder)
    return command, json.loads((folder / "ds_config.json").read_text())


def ds_file(tmp_path, **settings):
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(settings))
    return str(file)


def test_each_change_is_tried_alone_the_cheapest_first_and_then_together(tmp_path):
    file = ds_file(tmp_path, train_micro_batch_size_per_gpu=8, zero_optimization={"stage": 1})
    assert says(["deepspeed", "train.py", "--deepspeed_config", file]) == [
        ("micro batch 1 instead of 8",),
        ("ZeRO stage 2",),
        ("ZeRO stage 3",),
        ("optimizer states offloaded to the host",),
        ("micro batch 1 instead of 8", "ZeRO stage 3"),
        ("micro batch 1 instead of 8", "ZeRO stage 3", "optimizer states offloaded to the host"),
        (
            "micro batch 1 instead of 8",
            "ZeRO stage 3",
            "optimizer states offloaded to the host",
            "parameters offloaded to the host",
        ),
    ]


def test_a_smaller_micro_batch_keeps_the_global_batch(tmp_path):
    file = ds_file(tmp_path, train_micro_batch_size_per_gpu=8, gradient_accumulation_steps=2, train_batch_size=128)
    first = next(candidates(["deepspeed", "train.py", "--deepspeed_config", file]))
    _, ds = written(first, tmp_path)
    assert ds == {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 16, "train_batch_size": 128}


def test_the_command_names_the_copy_and_the_users_file_stays(tmp_path):
    file = ds_file(tmp_path, zero_optimization={"stage": 2})
    copies = tmp_path / "copies"
    copies.mkdir()
    first = next(candidates(["deepspeed", "train.py", f"--deepspeed={file}", "--lr", "1"]))
    command, ds = written(first, copies)
    assert command == ["deepspeed", "train.py", f"--deepspeed={copies / 'ds_config.json'}", "--lr", "1"]
    assert ds["zero_optimization"] == {"stage": 3}
    assert json.loads((tmp_path / "ds.json").read_text()) == {"zero_optimization": {"stage": 2}}


def test_the_trainers_options_are_changed_on_the_command_line(tmp_path):
    command = ["torchrun", "train.py", "--per_device_train_batch_size", "4", "--gradient_accumulation_steps=2"]
    first, second, third, *together = candidates(command)
    assert first.draft.command(tmp_path) == [*command[:3], "1", "--gradient_accumulation_steps=8"]
    assert second.draft.command(tmp_path) == [*command, "--gradient_checkpointing", "True"]
    assert third.draft.command(tmp_path) == [*command, "--bf16", "True"]
    assert [one.says for one in together] == [
        (
            "micro batch 1 instead of 4 (--per_device_train_batch_size 1 --gradient_accumulation_steps 8)",
            "activation checkpointing (--gradient_checkpointing)",
        ),
        (
            "micro batch 1 instead of 4 (--per_device_train_batch_size 1 --gradient_accumulation_steps 8)",
            "activation checkpointing (--gradient_checkpointing)",
            "mixed precision in bf16 (--bf16)",
        ),
    ]
    ended = [*command[:3], "1", "--gradient_accumulation_steps=8", "--gradient_checkpointing", "True", "--bf16", "True"]
    assert together[-1].draft.command(tmp_path) == ended


def test_options_that_the_script_alone_said_to_know_are_tried_from_the_values_that_it_read(tmp_path):
    command = ["torchrun", "train.py", "config"]
    known = [option("batch_size", 6), option("gradient_accumulation_steps", 2), option("bf16", None, is_flag=True)]
    first, second, *_ = candidates(command, known)
    assert first.draft.command(tmp_path) == [*command, "--batch_size", "1", "--gradient_accumulation_steps", "12"]
    assert second.draft.command(tmp_path) == [*command, "--bf16"]
    assert says(["python", "train.py"]) == []


def test_a_batch_that_becomes_smaller_in_all_is_said_to():
    (only,) = says(["python", "train.py"], [option("micro_batch_size", 4)])
    assert only == ("micro batch 1 instead of 4, the global batch 4 times smaller (--micro_batch_size 1)",)


def test_an_option_that_was_given_as_false_is_given_as_true(tmp_path):
    command = ["python", "train.py", "--gradient_checkpointing", "False", "--out", "x"]
    (only,) = candidates(command, [option("gradient_checkpointing", value=False)])
    assert only.draft.command(tmp_path) == ["python", "train.py", "--gradient_checkpointing", "True", "--out", "x"]


def test_a_launchers_word_is_left_alone_where_the_scripts_is_meant(tmp_path):
    command = ["accelerate", "launch", "--gradient_accumulation_steps", "2", "train.py", "--batch_size", "4"]
    known = [option("batch_size", 4), option("gradient_accumulation_steps", 1)]
    (only,) = for_device(Draft.of(command, known, num_arguments=2), environ={})
    assert only.draft.command(tmp_path) == [*command[:-1], "1", "--gradient_accumulation_steps", "4"]


def test_mixed_precision_is_asked_of_accelerates_launcher_where_the_script_cannot_be(tmp_path):
    command = ["accelerate", "launch", "--mixed_precision", "no", "train.py", "--lr", "1"]
    launched = option("mixed_precision", "no", of_launcher=True)
    (only,) = for_device(Draft.of(command, [launched], num_arguments=2), environ={})
    assert only.says == ("mixed precision in bf16 (--mixed_precision bf16)",)
    # the last of two is the one that argparse takes
    ended = ["accelerate", "launch", "--mixed_precision", "no", "--mixed_precision", "bf16", "train.py", "--lr", "1"]
    assert only.draft.command(tmp_path) == ended


@pytest.mark.parametrize(
    "known",
    [
        [option("bf16", value=False), option("fp16", value=True)],
        [option("mixed_precision", "fp16")],
        [option("bf16", value=True)],
        [option("bf16", value=False), option("mixed_precision", "bf16", of_launcher=True)],
    ],
)
def test_sixteen_bits_are_not_offered_twice(known):
    assert says(["python", "train.py"], known) == []


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_bf16_is_not_offered_to_a_script_whose_deepspeed_configuration_is_in_sixteen_bits(tmp_path, name):
    offered = {}
    for enabled in (True, False):
        file = ds_file(tmp_path, zero_optimization={"stage": 3}, **{name: {"enabled": enabled}})
        command = ["deepspeed", "train.py", "--deepspeed_config", file]
        said = [words for words in says(command, [option("bf16", value=False)]) if "bf16" in words[0]]
        offered[enabled] = bool(said)
    assert offered == {True: False, False: True}


def test_segments_that_grow_are_tried_first_where_what_is_free_lies_in_pieces():
    command, known = ["python", "train.py"], [option("batch_size", 2)]
    first, *others = candidates(command, known, in_pieces=True)
    assert first.draft.variables == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert first.says == ("PYTORCH_ALLOC_CONF=expandable_segments:True in the environment",)
    assert others[-1].draft.variables == first.draft.variables
    assert len(says(command, known)) == 1


def test_settings_of_the_allocator_that_are_there_stay():
    environ = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512"}
    (first,) = candidates(["python", "train.py"], in_pieces=True, environ=environ)
    assert first.draft.variables == {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512,expandable_segments:True"}
    assert (
        says(["python", "train.py"], in_pieces=True, environ={"PYTORCH_ALLOC_CONF": "expandable_segments:True"}) == []
    )


def test_what_was_moved_to_the_host_goes_back_where_the_host_is_too_small(tmp_path):
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
    start = Draft.of(["deepspeed", "train.py", ds_file(tmp_path, zero_optimization=zero)])
    made = list(for_host(start))
    pinned = {**zero, "offload_param": {"device": "cpu", "pin_memory": True}}
    locked = Draft.of(["deepspeed", "train.py", ds_file(tmp_path, zero_optimization=pinned)])
    assert "pin_memory false" not in {one.says[0] for one in for_host(locked)}
    unlocked = next(for_host(locked, counts_locks=True))
    assert unlocked.says == ("pin_memory false",)
    assert written(unlocked, tmp_path)[1]["zero_optimization"] == {
        **zero,
        "offload_param": {"device": "cpu", "pin_memory": False},
    }
    parameters, optimizer = "parameters on the GPU", "optimizer states on the GPU"
    assert [one.says for one in made] == [(parameters,), (optimizer,), (parameters, optimizer)]
    _, ds = written(made[1], tmp_path)
    assert ds["zero_optimization"]["offload_optimizer"] == {"device": "none"}
    assert list(for_host(Draft.of(["python", "train.py"]))) == []


def test_what_is_there_already_is_not_offered(tmp_path):
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "nvme"}}
    file = ds_file(tmp_path, train_micro_batch_size_per_gpu=1, zero_optimization=zero)
    given = ["--gradient_checkpointing", "--per_device_train_batch_size", "1", "--bf16"]
    command = ["deepspeed", "train.py", *given, file]
    assert says(command) == []


def test_a_batch_size_that_the_trainer_fills_in_is_left_to_it(tmp_path):
    file = ds_file(tmp_path, train_micro_batch_size_per_gpu="auto", zero_optimization={"stage": 3})
    (first, *_) = candidates(["deepspeed", "train.py", "--deepspeed", file, "--per_device_train_batch_size=2"])
    command, ds = written(first, tmp_path)
    assert first.says[0].startswith("micro batch 1 instead of 2 (--per_device_train_batch_size 1")
    assert ds["train_micro_batch_size_per_gpu"] == "auto"
    assert command[-3:] == ["--per_device_train_batch_size=1", "--gradient_accumulation_steps", "2"]


def test_a_torch_optimizer_may_stay_one_where_its_states_are_offloaded(tmp_path):
    file = ds_file(tmp_path, zero_optimization={"stage": 3})
    first = next(candidates(["deepspeed", "train.py", file]))
    _, ds = written(first, tmp_path)
    assert ds["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    assert ds["zero_force_ds_cpu_optimizer"] is False


def test_other_files_of_json_are_no_configuration(tmp_path):
    data = tmp_path / "data.json"
    data.write_text('{"documents": []}')
    command = ["python", "train.py", str(data), "missing.json"]
    assert Draft.of(command).ds is None
    assert says(command) == []


def test_the_larger_of_two_batch_sizes_is_said_where_option_and_file_differ(tmp_path):
    command = ["deepspeed", "train.py", "--deepspeed_config", ds_file(tmp_path, train_micro_batch_size_per_gpu=2)]
    known = [option("batch_size", 6), option("gradient_accumulation_steps", 1)]
    first, *_ = candidates(command, known)
    assert first.says[0].startswith("micro batch 1 instead of 6 ")
