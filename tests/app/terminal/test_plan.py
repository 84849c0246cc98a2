"""`zerobench plan` as users meet it: one line for each mistake, and nothing is written or started for it."""

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.app.search.by_arithmetic import extend_by_arithmetic, predict_by_arithmetic
from tests.app.terminal.conftest import Call
from tests.tools.no_emulator import MISSING, no_emulator  # noqa: F401 -- a fixture
from tests.tools.refusals import refused
from zerobench.app.terminal.planning import _call_in_width
from zerobench.records.records import TrialRecord

pytestmark = pytest.mark.usefixtures("no_emulator")

PLAN = ["plan", "--model", "gpt2-1.5b", "--gpus", "8", "--gpu", "h200", "--sequence-length", "1024"]


@pytest.fixture
def by_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predictions by the sample's arithmetic in place of the simulator, which takes seconds a trial."""
    monkeypatch.setattr("zerobench.app.search.outcome.predict", predict_by_arithmetic)
    monkeypatch.setattr("zerobench.app.search.played_rounds.extend", extend_by_arithmetic)
    monkeypatch.setattr("zerobench.app.search.predicted.predict", predict_by_arithmetic)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan"], "--model is missing; for example: zerobench plan --model llama-7b"),
        (["plan", "--model", "llama-7b"], "--gpus is missing"),
        (["plan", "--model", "llama-7b", "--gpus", "8"], "--gpu is missing"),
        ([*PLAN, "--frontier", "modle"], "did you mean 'model'"),
        ([*PLAN, "--frontier", "model", "--tokens", "1B"], "--tokens does not go with --frontier"),
        ([*PLAN, "--write", "."], "--write: .: a folder, not a file; for example ds_config.json"),
        ([*PLAN, "--write", "nowhere/ds.json"], "--write: nowhere/ds.json: no folder nowhere"),
        ([*PLAN, "--ds-config", "nowhere.json"], "no such file"),
        ([*PLAN, "--ds-config", "zero2.json", "--stage", "1"], "--stage does not go with --ds-config"),
        ([*PLAN, "--set", "strategy=zero1"], "--set needs a sweep"),
        ([*PLAN, "--global-batch", "12"], "--global-batch: 8 GPUs cannot share 12 sequences; choices: 8, 16"),
        ([*PLAN, "--global-batch", "16", "--frontier", "model"], "--global-batch does not go with --frontier"),
        ([*PLAN, "--global-batch", "16", "--ds-config", "a.json"], "--global-batch does not go with --ds-config"),
        ([*PLAN, "--for", "lightning"], "--for: 'lightning' is not known; choices: trainer"),
        (["tune", "gpt2-1.5b", "--gpus", "8", "--gpu", "h200"], "--global-batch is missing"),
        (["plan", "quikstart", "--gpu", "h200"], "did you mean 'quickstart'"),
        (["plan", "llama-7b", *PLAN[1:]], "llama-7b and --model gpt2-1.5b: give one model"),
        ([*PLAN, "--lora", "0"], "--lora: '0' is not known; choices: none, RANK, RANK-nf4"),
        (["plan", "trillion", "--lora", "16"], "--lora does not go with a sweep"),
        (["plan", "trillion", "--model", "llama-7b"], "--model does not go with a sweep"),
        (["plan", "--modle", "llama-7b"], "--model"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    call: Call, tmp_path: Path, arguments: list[str], words: str
) -> None:
    refused(call(*arguments), words)
    assert not list(tmp_path.iterdir())


def test_a_sweep_is_planned_by_formula_and_its_run_says_so(call: Call, tmp_path: Path) -> None:
    code, out, _ = call("plan", "predicted-7b", "--formula", "--reports", ".")
    assert code == 0
    assert "Predicted (formula): " in out
    [sweep] = tmp_path.glob("predicted-7b_*/sweep.yaml")
    assert yaml.safe_load(sweep.read_text())["axes"]["evidence"] == ["formula"]


def test_what_no_closed_form_knows_is_one_line_of_the_answer_and_the_rest_is_planned(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    axes = "model: llama-10m, strategy: zero3, world_size: 2, quantized_weights: [false, true]"
    (tmp_path / "own.yaml").write_text(f"name: own\naxes: {{{axes}, gpu: H200 SXM, evidence: formula}}\n")
    code, out, _ = call("plan", "own.yaml", "--formula", "--reports", ".")
    assert code == 0
    told = [line for line in out.splitlines() if "quantized_weights" in line]
    assert told == ["1 skipped: quantized_weights true formula: no closed form for quantized buffers"]
    assert "choose zero3" in out


def test_what_a_plan_does_not_read_of_ones_own_configuration_is_said_on_screen_and_in_the_record(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    own = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}, "wandb": {"enabled": True, "project": "mine"}}
    (tmp_path / "own.json").write_text(json.dumps(own))
    code, out, _ = call(*PLAN, "--formula", "--ds-config", "own.json")
    assert code == 0
    [note] = [line.removeprefix("note: ") for line in out.splitlines() if line.startswith("note: ")]
    assert note.startswith(f"{tmp_path / 'own.json'}: wandb.enabled, wandb.project: not used in this trial: ")
    [record] = tmp_path.glob("reports/*/trials/*/record.json")
    assert TrialRecord.model_validate_json(record.read_bytes()).notes == [note]
    handed = json.loads(record.with_name("ds_config.json").read_text())
    assert "wandb" not in handed


def test_a_configuration_of_ones_own_that_trains_something_else_is_one_line(call: Call, tmp_path: Path) -> None:
    own = {"zero_optimization": {"stage": 2}, "torch_autocast": {"enabled": True, "dtype": "bfloat16"}}
    (tmp_path / "own.json").write_text(json.dumps(own))
    refused(
        call(*PLAN, "--ds-config", "own.json"),
        "torch_autocast.enabled: not supported here: autocast keeps fp32 parameters",
    )


@pytest.mark.usefixtures("by_arithmetic")
def test_a_plan_opens_on_the_choice_memory_speed_and_next_command_and_writes_the_configuration(
    call: Call, tmp_path: Path
) -> None:
    code, out, _ = call(*PLAN, "--host-memory", "1TB", "--tokens", "300B", "--write", "ds.json")
    assert code == 0
    label = out.partition(": choose ")[2].partition("\n")[0]
    assert f"written: ds.json, the configuration of {label}" in out
    written = json.loads((tmp_path / "ds.json").read_text())
    assert f"zero{written['zero_optimization']['stage']}" == label.partition(" ")[0]
    assert "days" in out
    first = out.splitlines()[:4]
    assert [line.partition(": ")[0] for line in first] == ["gpt2-1.5b on 8 x H200 SXM", "Memory", "Speed", "Next"]
    assert first[3] == "Next: deepspeed train.py --deepspeed_config ds.json"
    assert out.index("Run: reports/plan-gpt2-1.5b; --details for the reasons\n\nPredicted (") > 0
    assert len([line for line in out.splitlines() if line.startswith("zero")]) == 9


@pytest.mark.usefixtures("by_arithmetic")
def test_the_next_command_fits_the_terminal_and_can_be_copied(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = call(*PLAN, "--host-memory", "1TB", "--write", f"{'a' * 40}.json")
    assert f"Next: deepspeed train.py \\\n    --deepspeed_config {'a' * 40}.json\n" in out


@pytest.mark.parametrize("verb", ["plan", "tune"])
def test_a_global_batch_is_answered_with_micro_batch_and_accumulation_on_one_screen(
    call: Call, tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"COLUMNS": "80", "LINES": "24", "FORCE_COLOR": "1", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)  # as on a terminal
    cluster = ["--gpus", "8", "--gpu", "h100", "--host-memory", "1TB", "--global-batch", "64", "--evidence", "formula"]
    model = ["--model", "llama-7b"] if verb == "plan" else ["llama-7b"]
    code, out, _ = call(verb, *model, *cluster, "--for", "trainer", "--fine-tune", "--write", "ds.json")
    assert code == 0
    [batch] = [line for line in out.splitlines() if line.startswith("Batch: ")]
    micro, accumulation = (int(batch.partition(f"{word} ")[2].split()[0]) for word in ("micro batch", "accumulation"))
    assert 8 * micro * accumulation == 64
    assert (
        f"per_device_train_batch_size={micro}, gradient_accumulation_steps={accumulation}, learning_rate=2e-05"
        in " ".join(out.split())
    )
    assert json.loads((tmp_path / "ds.json").read_text())["train_batch_size"] == "auto"
    [search] = tmp_path.glob("reports/*/search.json")
    found = json.loads(search.read_text())
    assert found["chosen"] in found["tried"]
    assert (found["num_variants"] > found["num_tried"]) is (len(found["tried"]) < found["num_variants"])
    assert f"Searched: {found['num_variants']:,} variants by formula" in out
    lines = re.sub("\x1b.*?m", "", out).splitlines()
    assert len(lines) <= 23, "the shell's prompt takes the last line"
    assert ": choose " in lines[0]
    assert lines[-2].endswith("more with --details")


@pytest.mark.usefixtures("by_arithmetic")
@pytest.mark.parametrize("are_shown", [False, True])
def test_details_come_before_the_answer_where_they_are_asked_for(call: Call, are_shown: bool) -> None:
    _, out, _ = call(*PLAN, "--host-memory", "1TB", *(["--details"] if are_shown else []))
    assert (": choose " in out, "9 configurations predicted" in out) == (True, are_shown)
    assert not are_shown or out.index("Lower bound of the step time") < out.index(": choose ")


@pytest.mark.usefixtures("by_arithmetic")
def test_where_nothing_fits_the_plan_says_so_writes_nothing_and_exits_with_1(call: Call, tmp_path: Path) -> None:
    small = ["--gpu", "t4", "--host-memory", "1TB", "--stage", "1"]
    code, out, _ = call(*PLAN, "--model", "gpt3-175b", *small, "--micro-batch", "8", "--write", "ds.json")
    assert code == 1
    assert ": nothing fits\n" in out
    assert re.search(r"None of \d+ fits with 5% room\. .* the closest, needs", " ".join(out.split()))
    tried = "activation checkpointing (whole, by operation, of every 2nd or 4th block), micro batches down to 1"
    assert f"Also tried: {tried}, offload to the host and smaller buckets" in " ".join(out.split())
    assert not (tmp_path / "ds.json").exists()


@pytest.mark.usefixtures("by_arithmetic")
def test_ones_own_configuration_is_planned_alone(call: Call, tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text('{"bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}')
    code, out, _ = call(*PLAN, "--ds-config", "own.json")
    assert code == 0
    assert out.count("yes") == 1


@pytest.mark.usefixtures("by_arithmetic")
@pytest.mark.parametrize("axis", ["model", "micro-batch", "sequence-length"])
def test_a_frontier_names_the_most_that_fits_for_each_cell(call: Call, axis: str) -> None:
    code, out, _ = call(*PLAN, "--model", "llama-7b", "--frontier", axis, "--stage", "1,3", "--host-memory", "4TB")
    assert code == 0
    assert f"largest {axis.replace('-', ' ')} that fits" in out
    rows = [line for line in out.splitlines() if line.startswith("zero")]
    assert len(rows) == 6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--evidence", "emulated"], MISSING),
        (["--evidence", "measured"], "--evidence: 'measured' is not known; choices: emulated, simulated, formula"),
        (["--evidence", "simulated", "--formula"], "--formula contradicts --evidence simulated: give one of them"),
    ],
)
def test_a_world_that_cannot_be_is_one_line(call: Call, arguments: list[str], words: str) -> None:
    refused(call(*PLAN, *arguments), words)


def test_training_arguments_stay_within_80_columns_and_can_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zerobench.app.terminal.planning.screen_width", lambda: 80)
    arguments = [f"argument_{number}={number}" for number in range(12)]
    lines = _call_in_width("Next: ", "TrainingArguments", [*arguments, 'deepspeed="my own/ds.json"'])
    assert lines[0] == "Next: TrainingArguments("
    assert max(map(len, lines)) <= 80
    assert len(lines) == 4
    assert all(line.startswith("    argument_") or 'deepspeed="my own/ds.json")' in line for line in lines[1:])
    assert " ".join(line.strip() for line in lines[1:]) == ", ".join([*arguments, 'deepspeed="my own/ds.json")'])
    assert _call_in_width("Next: ", "f", ["a=1", "b=2"]) == ["Next: f(a=1, b=2)"]
