"""Which options a script parses is heard from its own parser."""

import argparse
from dataclasses import dataclass
from typing import Any

import pytest

from zerobench.launch.emulate.inside.script_options import hear_options, launcher_options


@pytest.fixture
def heard(monkeypatch):
    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", argparse.ArgumentParser.parse_known_args)
    told: list[Any] = []
    hear_options(told.append)
    return told


def own_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", "-b", type=int, default=8)
    parser.add_argument("--gradient_checkpointing", action="store_true")
    parser.add_argument("--lr", type=float, default=1.0)
    return parser


def test_names_values_and_flags_that_can_be_varied_are_heard_and_no_others(heard, monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.py", "-b", "4"])
    assert own_parser().parse_args().batch_size == 4
    ((batch, checkpointing),) = heard
    assert (batch.dest, batch.names, batch.value, batch.is_flag) == ("batch_size", ["--batch-size", "-b"], 4, False)
    assert (checkpointing.dest, checkpointing.value, checkpointing.is_flag) == ("gradient_checkpointing", False, True)


def test_a_parser_of_other_words_is_not_the_scripts(heard, monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.py", "-b", "4"])
    own_parser().parse_args(["-b", "2"])
    assert heard == []


def test_the_trainers_options_are_heard_from_the_parser_of_transformers(heard, monkeypatch):
    from transformers import HfArgumentParser

    @dataclass
    class Arguments:
        per_device_train_batch_size: int = 8
        bf16: bool = False

    monkeypatch.setattr("sys.argv", ["train.py", "--bf16", "True"])
    (read,) = HfArgumentParser(Arguments).parse_args_into_dataclasses()
    assert read.bf16
    options = {option.dest: option for option in heard[-1]}
    assert (options["per_device_train_batch_size"].value, options["bf16"].value) == (8, True)
    assert not options["bf16"].is_flag


def test_what_accelerates_launcher_set_is_known_by_its_variable(monkeypatch):
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    assert launcher_options() == []
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    (option,) = launcher_options()
    assert (option.dest, option.value, option.of_launcher) == ("mixed_precision", "no", True)
