"""What is tried where a command does not fit."""

from __future__ import annotations

import json

from zerobench.emulate.changes import Draft, candidates


def says(command):
    return [candidate.says for candidate in candidates(command)]


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
    first, second, third = candidates(command)
    assert first.draft.command(tmp_path) == [*command[:3], "1", "--gradient_accumulation_steps=8"]
    assert second.draft.command(tmp_path) == [*command, "--gradient_checkpointing", "True"]
    assert third.says == ("micro batch 1 instead of 4", "activation checkpointing")


def test_what_is_there_already_is_not_offered(tmp_path):
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "nvme"}}
    file = ds_file(tmp_path, train_micro_batch_size_per_gpu=1, zero_optimization=zero)
    command = ["deepspeed", "train.py", "--gradient_checkpointing", "--per_device_train_batch_size", "1", file]
    assert says(command) == []


def test_a_batch_size_that_the_trainer_fills_in_is_left_to_it(tmp_path):
    file = ds_file(tmp_path, train_micro_batch_size_per_gpu="auto", zero_optimization={"stage": 3})
    (first, *_) = candidates(["deepspeed", "train.py", "--deepspeed", file, "--per_device_train_batch_size=2"])
    command, ds = written(first, tmp_path)
    assert (first.says, ds["train_micro_batch_size_per_gpu"]) == (("micro batch 1 instead of 2",), "auto")
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
    assert not Draft.of(command).can_change
    assert says(command) == []
