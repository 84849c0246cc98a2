"""The ledger's total on a CPU is what torch's allocator took from the C library, counted there and not by torch."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tools.at_least_one import at_least_one
from tests.tools.imports import ROOT
from zerobench.common.vocabulary import Phase

COUNTER = Path(__file__).with_name("counted_malloc.c")
FEW_BYTES = 64 * 1024
FOREIGN = [
    "Diffusion",
    "LstmLanguageModel",
    "GraphNetwork",
    "ImageClassifier",
    "VariationalAutoencoder",
    "Translation",
    "StateSpace",
    "Adversaries",
    "Siamese",
    "Averaged",
]
MODELS = ["moe", "bert", "t5", "vit", "cnn", "cnn-bf16", "threads"]

Told = dict[str, Any]


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("counter") / "counter.so"
    command = ["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", str(COUNTER), "-o", str(library)]
    subprocess.run([*command, "-ldl", "-lpthread"], check=True)
    return library


def start(counter: Path, module: str, *arguments: str) -> subprocess.Popen[str]:
    environ = {**os.environ, "LD_PRELOAD": str(counter)}
    command = [sys.executable, "-m", f"tests.rank.ledger.{module}", *arguments]
    return subprocess.Popen(command, env=environ, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def told(process: subprocess.Popen[str]) -> list[Told]:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return [json.loads(line) for line in output.splitlines()]


@pytest.fixture(scope="module")
def trained(counter: Path) -> list[Told]:
    return told(start(counter, "counted_training"))


@pytest.fixture(scope="module")
def foreign(counter: Path) -> list[Told]:
    return told(start(counter, "counted_foreign"))


@pytest.fixture(scope="module")
def communicated(counter: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Told]:
    store = str(tmp_path_factory.mktemp("store") / "store")
    ranks = [start(counter, "counted_gloo", store, str(rank)) for rank in range(2)]
    return [line for rank in ranks for line in told(rank)]


def assert_counted(line: Told) -> None:
    for counted, said in zip(line["counted"], line["said"], strict=True):
        assert abs(said - counted) <= max(0.01 * counted, FEW_BYTES), line


@pytest.mark.parametrize("model", MODELS)
def test_the_total_is_what_the_allocator_took_in_every_phase(trained, model):
    lines = [line for line in trained if line["model"] == model]
    assert len(lines) == 7
    for line in lines:
        assert_counted(line)


@pytest.mark.parametrize("model", FOREIGN)
def test_of_ten_foreign_kinds_of_training_the_total_is_not_a_byte_off_in_any_phase(foreign, model):
    lines = [line for line in foreign if line["model"] == model]
    assert len(lines) == 7
    assert [line["said"] for line in lines] == [line["counted"] for line in lines]


def test_nothing_of_a_training_that_is_over_is_kept_for_the_next_one(foreign):
    starts = {line["model"]: line["unattributed"] for line in foreign if line["phase"] == Phase.INIT}
    average = 4 * (2 * 1000 * 128 + 1000 + 4 * 128 * 128 + 4 * 128 + 128)  # of the last one's own weights, unnamed
    assert starts == {**dict.fromkeys(FOREIGN, 0), "Averaged": average}


@pytest.mark.parametrize("model", ["vit", "cnn", "cnn-bf16"])
def test_what_kernels_take_within_an_operation_has_a_category_of_its_own(trained, model):
    passes = (line for line in trained if line["phase"] in {Phase.FORWARD, Phase.BACKWARD})
    for line in at_least_one(line for line in passes if line["model"] == model):
        assert line["workspace"] > 0.02 * line["counted"][1], line


def test_what_another_thread_makes_and_what_only_cpp_holds_is_unattributed(trained):
    before, *_, after = [line["unattributed"] for line in trained if line["model"] == "threads"]
    assert after - before == 2 * (500_000 + 500 * 500) * 4


def test_the_copies_that_gloo_makes_are_counted_and_are_no_tensors(communicated):
    assert len(communicated) == 4
    for line in communicated:
        assert_counted(line)
    gathered = [line for line in communicated if line["phase"] == Phase.FORWARD]
    assert [line["workspace"] for line in gathered] == [8_000_000] * 2
    assert [line["unattributed_at_peak"] for line in gathered] == [12_000_000] * 2  # what it read and wrote
