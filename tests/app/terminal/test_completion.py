"""What a shell completes: the functions, the options that have them, and a real bash."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from zerobench.app.terminal import completion
from zerobench.app.terminal.app import commands
from zerobench.config.hardware.hardware import known_gpu, load_catalogue
from zerobench.config.models.presets import PRESETS

NAMED = {
    "gpu": "h10",
    "model": "llama-7",
    "precision": "bf",
    "blocks": "fu",
    "evidence": "sim",
    "sets": "strategy=zero",
    "only": "gpu=h",
}
"""Options that take a name of a list, and how one of them begins."""


def test_every_option_and_argument_that_takes_a_listed_name_completes_it() -> None:
    met = set()
    for command in commands():
        with command.make_context(command.name, [], resilient_parsing=True) as context:
            for parameter in command.params:
                if parameter.name in NAMED:
                    words = parameter.shell_complete(context, NAMED[parameter.name])
                    assert [word for word in words if word.type == "plain"], f"{command.name} {parameter.name}"
                    met.add(parameter.name)
    assert met == set(NAMED)


def test_each_gpu_s_word_has_no_space_and_is_taken_for_that_gpu() -> None:
    words = completion.gpus("")
    assert len(words) == len(load_catalogue())
    assert not [word for word in words if " " in word]
    assert [known_gpu(word).name for word in words] == [gpu.name for gpu in load_catalogue()]


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("strategy=zero", ["strategy=zero0", "strategy=zero1", "strategy=zero2", "strategy=zero3"]),
        ("strategy=zero1,zero", [f"strategy=zero1,zero{stage}" for stage in (0, 2, 3)]),
        ("evidence=si", ["evidence=simulated"]),
        ("seque", []),
        ("micro_batch_size=", []),
        ("nothing=", []),
    ],
)
def test_the_last_value_of_an_axis_is_completed(typed: str, words: list[str]) -> None:
    assert completion.axis_values(typed) == words


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("plan --model llama-7b --gpu h100", ["h100-sxm", "h100-sxm-96gb", "h100-nvl", "h100-pcie"]),
        ("plan --model llama-", [name for name in PRESETS if name.startswith("llama-")]),
        ("plan --evidence ", ["emulated", "simulated", "formula"]),
        ("strategies zero", ["zero0", "zero1", "zero2", "zero3"]),
        ("expl", ["explain"]),
    ],
)
def test_bash_completes(line: str, words: list[str], tmp_path: Path) -> None:
    """By the script that --install-completion installs, called as readline calls it."""
    program = Path(sys.executable).with_name("zerobench")
    shown = subprocess.run(
        [program], env=os.environ | {"_ZEROBENCH_COMPLETE": "source_bash"}, check=True, capture_output=True, text=True
    )
    typed = ["zerobench", *line.split(" ")]
    script = f"""{shown.stdout}
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_zerobench_completion {program}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    answer = subprocess.run(
        ["bash", "-c", script, "bash", *typed], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert [word for word in answer.stdout.splitlines() if word] == words
