"""Options of a script that say how much memory it takes, read from the words of its command."""

import pytest

from zerobench.launch.emulate.options import NAMES, Kind, Option, Value, options_of_words


@pytest.mark.parametrize(("words", "dest", "value", "name"), [
    (["--batch_size", "8"], "batch_size", 8, "--batch_size"),
    (["--batch-size", "8"], "batch_size", 8, "--batch-size"),
    (["--batch_size=8"], "batch_size", 8, "--batch_size"),
    (["--batch_size="], "batch_size", None, "--batch_size"),
    (["--batch_size"], "batch_size", None, "--batch_size"),
    (["--batch_size", "--lr", "1"], "batch_size", None, "--batch_size"),
    (["--batch_size", "8.0"], "batch_size", None, "--batch_size"),
    (["--batch_size", "\u0668"], "batch_size", None, "--batch_size"),
    (["--gradient_accumulation_steps", "4"], "gradient_accumulation_steps", 4, "--gradient_accumulation_steps"),
    (["--bf16"], "bf16", True, "--bf16"),
    (["--bf16", "True"], "bf16", True, "--bf16"),
    (["--bf16=false"], "bf16", False, "--bf16"),
    (["--bf16", "No"], "bf16", False, "--bf16"),
    (["--fp16", "n"], "fp16", False, "--fp16"),
    (["--fp16", "f"], "fp16", False, "--fp16"),
    (["--fp16", "0"], "fp16", False, "--fp16"),
    (["--fp16", "1"], "fp16", True, "--fp16"),
    (["--gradient_checkpointing"], "gradient_checkpointing", True, "--gradient_checkpointing"),
    (["--mixed_precision", "fp16"], "mixed_precision", "fp16", "--mixed_precision"),
    (["--mixed_precision", "no"], "mixed_precision", "no", "--mixed_precision"),
    (["--mixed_precision="], "mixed_precision", None, "--mixed_precision"),
])  # fmt: skip
def test_an_option_has_the_value_that_stands_with_it(words: list[str], dest: str, value: Value, name: str) -> None:
    assert options_of_words(words) == [Option(dest=dest, names=[name], value=value)]


def test_of_an_option_that_is_given_twice_the_last_counts_as_argparse_has_it() -> None:
    assert [option.value for option in options_of_words(["--batch_size", "8", "--batch_size", "2"])] == [2]


def test_other_words_are_no_options() -> None:
    assert options_of_words(["batch_size", "8", "-batch_size", "8", "--learning_rate", "1e-4"]) == []
    assert options_of_words([]) == []


@pytest.mark.parametrize("word", ["--output_dir", "--max_steps=3", "--per_device_train_batch_size"])
def test_a_script_of_the_trainers_knows_what_else_the_trainer_knows_at_its_defaults(word: str) -> None:
    found = {option.dest: option.value for option in options_of_words([word, "--bf16", "True"])}
    found.pop("per_device_train_batch_size", None)
    assert found == {"bf16": True, "gradient_accumulation_steps": 1, "gradient_checkpointing": False}


@pytest.mark.parametrize(("kind", "names"), [
    (Kind.BATCH, ["per_device_train_batch_size", "train_micro_batch_size_per_gpu", "micro_batch_size",
                  "train_batch_size", "batch_size"]),
    (Kind.PASSES, ["gradient_accumulation_steps"]),
    (Kind.CHECKPOINTING, ["gradient_checkpointing", "activation_checkpointing"]),
    (Kind.BF16, ["bf16"]),
    (Kind.FP16, ["fp16"]),
    (Kind.MIXED_PRECISION, ["mixed_precision"]),
])  # fmt: skip
def test_each_kind_has_its_names_of_which_the_most_telling_stands_first(kind: Kind, names: list[str]) -> None:
    assert [name for name, of in NAMES.items() if of is kind] == names
    assert [Option(dest=name, names=[]).kind for name in names] == [kind] * len(names)
