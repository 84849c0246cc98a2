"""`zerobench explain` as users meet it."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.app.terminal.conftest import Call
from tests.report.explain.runs import BUCKETS, LARGE_2, LARGE_3, QUICKSTART
from tests.report.explain.test_log import FIRST_UPDATE
from tests.report.figures.compare.runs import lay_out
from tests.report.sample_run import failed_trial, spec
from tests.tools.refusals import refused
from zerobench.app.terminal.explain import write
from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Status
from zerobench.config.trial.trial import OwnScript
from zerobench.records.records import Failure
from zerobench.records.store import load_run


@pytest.mark.parametrize(
    ("run", "trials", "answer"),
    [
        (QUICKSTART, ["zero2"], "of a steady step: optimizer states 120.79 MiB, temporaries 80.53 MiB, gradients"),
        (QUICKSTART, ["zero2", "zero3"], "zero2 peaks 37.20 MiB higher than zero3 in device memory"),
        (BUCKETS, [LARGE_2, LARGE_3], "zero3 peaks 645.99 MiB higher than zero2 in device memory"),
        (QUICKSTART, ["zero2", f"{BUCKETS}:{LARGE_3}"], "zero3 reduce_bucket=5e8 peaks"),
    ],
)
def test_the_answer_stands_on_a_screen_of_80_by_24(
    call: Call, run: Path, trials: list[str], answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = call("explain", str(run), *trials)
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert answer in " ".join(" ".join(lines[1:4]).split())
    assert lines[-1] == "--details for the arithmetic"
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80


def test_one_trial_is_explained_in_eighty_columns(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = call("explain", str(QUICKSTART), "zero2", "--details")
    assert (code, err) == (0, "")
    assert out.startswith("Answer\n  zero2 peaks at ")
    assert "\nzero2 (llama-20m-zero2-n2-" in out
    assert [line for line in out.splitlines() if not line.startswith(" ")][3:] == [
        "",
        "Peak",
        "",
        "Device memory at the peak",
        "",
        "Settings that change the steady peak most",
        "",
        "Time",
    ]
    assert max(map(len, out.splitlines())) <= 80


def test_two_trials_are_compared(call: Call) -> None:
    code, out, _ = call("explain", str(BUCKETS), LARGE_2, LARGE_3, "--details")
    assert code == 0
    assert "strategy: zero2 -> zero3" in out
    assert "Summary" in out
    assert "--details" not in out


def test_json_holds_the_figures_and_the_sentences(call: Call) -> None:
    code, out, _ = call("explain", str(BUCKETS), LARGE_2, LARGE_3, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["more_bytes"] == sum(one["more_bytes"] for one in found["differences"]) == 677_370_368
    first, _, *titles = [one["title"] for one in found["passages"]]
    assert (first, titles) == ("Answer", ["Device memory", "Summary", "Time"])
    _, out, _ = call("explain", str(BUCKETS), LARGE_3, "--json")
    alone = json.loads(out)
    assert sum(alone["peak"]["categories"].values()) == alone["peak"]["total_bytes"]


def test_the_second_trial_may_be_of_another_run(call: Call) -> None:
    code, out, _ = call("explain", str(QUICKSTART), "zero2", f"{BUCKETS}:{LARGE_3}")
    assert code == 0
    assert "model: llama-20m -> gpt2-350m" in out


def test_both_trials_may_be_named_with_their_runs(call: Call) -> None:
    apart = call("explain", str(QUICKSTART), "zero2", f"{BUCKETS}:{LARGE_3}")
    assert call("explain", f"{QUICKSTART}:zero2", f"{BUCKETS}:{LARGE_3}") == apart
    assert call("explain", f"{QUICKSTART}:zero2") == call("explain", str(QUICKSTART), "zero2")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["zero2"], "'zero2' matches several trials; choices: 'zero2 reduce_bucket=5e7'"),
        (["zero3 reduce_buckets=5e8"], "did you mean 'zero3 reduce_bucket=5e8'"),
        ([LARGE_3, "nowhere:zero2"], "'nowhere' is not a run folder"),
        ([], "TRIAL"),
    ],
)
def test_a_mistake_is_one_line_with_the_choices(call: Call, arguments: list[str], words: str) -> None:
    refused(call("explain", str(BUCKETS), *arguments), words)


def test_without_a_trial_it_is_said_whether_the_run_is_there(call: Call) -> None:
    assert "'nowhere' is not a run folder" in call("explain", "nowhere")[2]
    assert f"TRIAL is missing: a trial of {BUCKETS.name} as" in call("explain", str(BUCKETS))[2]


def test_a_log_is_explained_without_a_trial(call: Call, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11"
        " GiB of which 1.00 GiB is free. Of the allocated memory 70.00 GiB is allocated by PyTorch, and 0.50 GiB is"
        " reserved by PyTorch but unallocated."
    )
    code, out, _ = call("explain", str(log), "--json")
    assert (code, json.loads(out)["refusal"]["asked_bytes"]) == (0, 2 * 2**30)
    log.write_text("loss 2.1")
    code, out, err = call("explain", str(log))
    assert (code, out, err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    ("line", "zero", "untried"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.",
            {"stage": 1},
            ["activation checkpointing", "ZeRO stage 2", "ZeRO stage 3", "optimizer states offloaded to the host"],
        ),
        (
            "[1.2] Out of memory: Killed process 41 (python3) anon-rss:61234567kB",
            {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}},
            ["pin_memory false", "optimizer states on the GPU"],
        ),
    ],
)
def test_a_log_with_its_configuration_alone_is_told_what_could_be_changed_in_that(
    call: Call, tmp_path: Path, line: str, zero: dict[str, object], untried: list[str]
) -> None:
    log, config = tmp_path / "train.log", tmp_path / "ds.json"
    log.write_text(line + "\n")
    config.write_text(json.dumps({"bf16": {"enabled": True}, "zero_optimization": zero}))
    code, out, err = call("explain", str(log), "--ds-config", str(config), "--gpus", "8")
    assert (code, err) == (0, "")
    title, *told = [line.strip() for line in out.splitlines()][-len(untried) - 2 :]
    assert title == "Changes to try (not predicted)"
    assert told == [*untried, "To have each predicted, with its cost in time, add --model, --gpu."]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["zero2", "--ds-config", "ds.json"], "--ds-config applies to logs; for a trial use --changes"),
        (["--gpus", "8"], "--ds-config is missing: the DeepSpeed configuration of the logged training"),
    ],
)
def test_what_a_logs_training_was_is_said_of_a_log_and_with_its_configuration(
    call: Call, words: list[str], said: str
) -> None:
    assert call("explain", "train.log", *words) == (2, "", f"zerobench: {said}\n")


def test_a_terminal_without_a_character_gets_a_question_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", ascii_only)
    write("\N{REPLACEMENT CHARACTER} ok")
    ascii_only.seek(0)
    assert ascii_only.read() == "? ok\n"


@pytest.mark.parametrize(("status", "is_told"), [(Status.CRASH, True), (Status.OUT_OF_DEVICE_MEMORY, False)])
def test_what_a_crashed_script_wrote_of_memory_comes_first(
    call: Call, tmp_path: Path, status: Status, *, is_told: bool
) -> None:
    """Of one in which no tracker spoke there is no other word."""
    crashed = failed_trial(spec("zero2"), Failure(message="the command exited with 1"), status)
    run = lay_out(tmp_path, "script_20260102-030405", [crashed])
    written = load_run(run).folder.trial(crashed.spec.trial_id).stderr
    written.write_text(
        "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 128.00 MiB. GPU 0 has a total capacity "
        "of 12.00 GiB of which 4.00 MiB is free. Of the allocated memory 11.30 GiB is allocated by PyTorch, and 26.00 "
        "MiB is reserved by PyTorch but unallocated.\n"
    )
    code, out, err = call("explain", str(run), "zero2")
    assert (code, err) == (0, "")
    assert out.startswith("Out of GPU memory\n  Full: 98.00 MiB missing") is is_told
    assert "Why it did not complete" in out
    written.write_text("Traceback (most recent call last):\nValueError: no such column\n")
    assert call("explain", str(run), "zero2")[1].startswith("zero2 (")


@pytest.mark.parametrize(("unknown", "is_told"), [((), True), (("precision",), False)])
def test_changes_are_pointed_to_where_the_work_is_known_well_enough_to_predict_them(
    call: Call, tmp_path: Path, unknown: tuple[str, ...], *, is_told: bool
) -> None:
    asked = spec("zero2").model_copy(update={"own": OwnScript(name="train", unknown=unknown)})
    refused = failed_trial(asked, Failure(message="refused"), Status.OUT_OF_DEVICE_MEMORY)
    run = lay_out(tmp_path, "train_20260102-030405", [refused])
    code, out, _ = call("explain", str(run), refused.spec.trial_id)
    assert code == 0
    assert ("the same command with --changes" in out) is is_told


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"bf16": {"enabled": True}, "zero_optimization": {"stage": 1}}))
    return path


def test_a_failure_in_the_update_is_not_told_to_checkpoint_activations(
    call: Call, tmp_path: Path, config: Path
) -> None:
    log = tmp_path / "train.log"
    log.write_text(FIRST_UPDATE)
    code, out, err = call("explain", str(log), "--ds-config", str(config))
    assert (code, err) == (0, "")
    assert "ZeRO stage 2" in out
    assert "activation checkpointing" not in out


def test_a_prediction_is_made_of_the_logs_training_on_the_logs_gpu(
    call: Call, tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def predict(trial: Any, cluster: Any, *_: Any, **told: Any) -> None:
        asked.extend((trial, cluster, told))
        raise UserError("seen")

    monkeypatch.setattr("zerobench.app.terminal.explain.predict_changes", predict)
    log = tmp_path / "train.log"
    log.write_text(FIRST_UPDATE)
    words = [
        "--model",
        "qwen2.5-1.5b",
        "--gpus",
        "2",
        "--gpu",
        "h100",
        "--micro-batch",
        "4",
        "--ds-config",
        str(config),
    ]
    more = ["--activation-checkpointing", "--gradient-accumulation", "8", "--lora", "16"]
    refused(call("explain", str(log), *words, *more), "seen")
    trial, cluster, told = asked
    assert cluster.device_memory_bytes == int(79.32 * 2**30)
    assert (trial.micro_batch_size, trial.gradient_accumulation_steps) == (4, 8)
    assert trial.activation_checkpointing
    assert trial.adapter is not None
    assert told == {"of_host": False, "has_activations": False}


@pytest.mark.parametrize("words", [["--lora", "16"], ["--activation-checkpointing"], ["--gradient-accumulation", "2"]])
def test_no_option_of_a_log_is_ignored(call: Call, tmp_path: Path, words: list[str]) -> None:
    log = tmp_path / "train.log"
    log.write_text(FIRST_UPDATE)
    refused(call("explain", str(log), *words), "--ds-config is missing")
    refused(call("explain", "run", "zero2", *words), f"{words[0]} applies to logs")
