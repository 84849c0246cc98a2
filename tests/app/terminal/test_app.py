"""The command line as users meet it: one line for each mistake, and help at once."""

import contextlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.terminal.conftest import Call
from tests.tools.refusals import refused
from zerobench import __version__
from zerobench.app import commands as declared
from zerobench.app.terminal.app import DECLARED, EXAMPLES, GROUPS, commands, main

MORE_RANKS_THAN_CORES = ["quickstart", "--set", "world_size=4096", "--only", "strategy=zero1,zero2"]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose trials were all skipped."""
    folder = tmp_path_factory.mktemp("ended")
    with contextlib.chdir(folder), pytest.raises(SystemExit):
        main(["run", *MORE_RANKS_THAN_CORES])
    [path] = (folder / "reports").iterdir()
    return path


@pytest.fixture
def run(ended: Path, tmp_path: Path) -> Path:
    """A copy of it under reports."""
    return Path(shutil.copytree(ended, tmp_path / "reports" / ended.name))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rnu"], "did you mean 'run'"),
        (["run", "--onyl", "x"], "--only"),
        (["run"], "SWEEP is missing: a sweep file, or a shipped one: "),
        (["run", "quikstart"], "did you mean 'quickstart'"),
        (["run", "here.yaml"], "no such file"),
        (["run", "quickstart", "--repeats", "many"], "--repeats: 'many': input should be a valid integer"),
        (["run", "quickstart", "--repeats", "0"], "--repeats: '0': input should be greater than or equal to 1"),
        (["status", "--follow", "-3"], "--follow: '-3': input should be greater than or equal to 1"),
        (["run", "."], "sweep: '.' is a folder"),
        (["run", "quickstart", "--only", "strategy=zero9"], "no trial has 'zero9'"),
        (["run", "quickstart", "--hostfile", "nowhere"], "--hostfile: nowhere cannot be read"),
        (["run", "--resume", "nowhere"], "'nowhere' is not a run folder"),
        (["run", "--resume", "nowhere", "--repeats", "2"], "SWEEP is missing"),
        (["show"], "no run under reports yet; make one with: zerobench run quickstart"),
        (["show", "nowhere"], "'nowhere' is not a run folder"),
        (["models", "llama-7"], "did you mean 'llama-7b'"),
        (["models", "llama-7b", "--gpus"], "MODEL: 'llama-7b' does not go with --gpus"),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_exit_status_2(call: Call, arguments: list[str], words: str) -> None:
    refused(call(*arguments), words)


def test_the_list_of_commands_tells_each_in_a_whole_sentence(call: Call) -> None:
    code, out, _ = call("--help")
    assert code == 0
    assert [line for line in out.splitlines()[1:] if line.endswith("...")] == []


@pytest.mark.parametrize("verb", list(DECLARED))
def test_usage_has_one_pair_of_brackets_around_what_may_be_left_out(call: Call, verb: str) -> None:
    code, out, _ = call(verb, "--help")
    assert "<" not in out
    assert "{" not in out
    assert code == 0
    assert "[[" not in out


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from zerobench.app.terminal.app import main\n"
        "try: main(['--help'])\nfinally: print(sorted(sys.modules))"
    )
    shown = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert "zerobench run quickstart" in shown.stdout
    for heavy in ("torch", "deepspeed", "transformers", "pandas", "pyarrow", "pydantic", "psutil", "pynvml"):
        assert f"'{heavy}'" not in shown.stdout


def test_no_verb_at_all_is_help(call: Call) -> None:
    code, out, _ = call()
    assert code == 0
    assert [line for line in out.splitlines() if line.rstrip(":") in GROUPS] == [f"{name}:" for name in GROUPS]


def test_the_doctor_imports_no_training_framework() -> None:
    script = (
        "import sys; from zerobench.app.terminal.app import main\n"
        "try: main(['doctor'])\nfinally: print(sorted(sys.modules))"
    )
    shown = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert "What can run here" in shown.stdout
    assert [name for name in ("torch", "deepspeed", "transformers", "pandas") if f"'{name}'" in shown.stdout] == []


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_an_example_of_the_help_is_a_command_line_that_is_understood(call: Call, line: str) -> None:
    name, *words = shlex.split(line)
    command = next(one for one in commands() if one.name == name)
    command.make_context(name, words)
    assert f"  zerobench {line}\n" in call(name, "--help")[1]


def test_every_command_has_an_example() -> None:
    assert sorted(EXAMPLES) == sorted(DECLARED)


def test_every_command_stands_under_one_heading_of_the_help() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(file.stem for file in Path(declared.__file__).parent.glob("[a-z]*.py"))
    assert [command.name for command in commands()] == grouped


def test_the_version_is_shown(call: Call) -> None:
    assert call("--version") == (0, f"zerobench {__version__}\n", "")


def test_the_module_is_the_same_as_the_script() -> None:
    shown = subprocess.run([sys.executable, "-m", "zerobench", "--version"], check=True, capture_output=True, text=True)
    assert shown.stdout == f"zerobench {__version__}\n"


def test_the_shipped_sweeps_are_listed_with_what_they_show(call: Call) -> None:
    code, out, _ = call("sweeps")
    assert code == 0
    for name in ("quickstart", "zero-stages", "offload", "model-size", "micro-batch", "world-size"):
        assert any(line.startswith(f"{name} ") and len(line) > 30 for line in out.splitlines())


def test_models_are_listed_with_their_exact_parameters(call: Call) -> None:
    _, out, _ = call("models")
    lines = {line.split()[0]: line for line in out.splitlines() if line}
    assert " 6,738,415,616 " in lines["llama-7b"]
    assert " 124,439,808 " in lines["gpt2-125m"]


def test_gpus_and_axes_are_listed_by_the_names_that_options_take(call: Call) -> None:
    gpus = call("models", "--gpus")[1].splitlines()
    assert any(line.split()[:7] == ["H200", "SXM", "140.40", "139.80", "catalogue", "990", "4,800"] for line in gpus)
    axes = call("sweeps", "--axes")[1].splitlines()
    assert [line for line in axes if line.startswith("      offload_param: none ")] != []


def test_a_model_is_shown_by_component_and_the_components_add_up(call: Call) -> None:
    _, out, _ = call("models", "llama-7b")
    lines = [line.rsplit(maxsplit=2) for line in out.splitlines()]
    counts = {name: int(count.replace(",", "")) for name, count, _ in lines}
    assert counts["mlp"] == 4_328_521_728
    assert counts.pop("total") == sum(counts.values())
    assert {name: share for name, _, share in lines}["mlp"] == "64.2%"


LISTINGS = [["models"], ["models", "llama-7b"], ["models", "--gpus"], ["sweeps"], ["sweeps", "--axes"], ["doctor"]]


@pytest.mark.parametrize("arguments", LISTINGS, ids=" ".join)
def test_a_listing_is_no_wider_than_the_terminal_and_breaks_no_word(
    call: Call, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {}
    for columns in (80, 300):
        monkeypatch.setenv("COLUMNS", str(columns))
        _, out, _ = call(*arguments)
        assert max(map(len, out.splitlines())) <= columns
        words[columns] = {word for word in out.split() if word.isalpha()}
    assert words[80] == words[300]


def test_a_dry_run_lists_each_trial_with_the_rule_it_breaks_and_writes_nothing(call: Call, tmp_path: Path) -> None:
    code, out, _ = call("run", "offload", "--dry-run")
    assert code == 0
    verdicts = [line.split()[0] for line in out.splitlines()]
    assert set(verdicts) == {"run", "skipped"}
    assert any("nvme_needs_path: " in line for line in out.splitlines())
    assert list(tmp_path.iterdir()) == []


def test_a_run_says_where_it_lies_and_exits_with_0_when_all_was_skipped(call: Call, tmp_path: Path) -> None:
    code, out, err = call("run", *MORE_RANKS_THAN_CORES)
    assert (code, err) == (0, "")
    [path] = (tmp_path / "reports").iterdir()
    assert out.splitlines()[-1] == f"Run: reports/{path.name}"
    assert "0 trials to run, 2 skipped" in out
    statuses = [json.loads(record.read_text())["status"] for record in path.glob("trials/*/record.json")]
    assert statuses == ["skipped", "skipped"]


def test_a_run_is_shown_again_by_name_and_as_the_newest(call: Call, run: Path) -> None:
    newest = call("show")
    assert newest[0] == 0
    assert run.name in newest[1]
    assert call("show", run.name) == newest


def test_resuming_with_another_sweep_is_refused_and_with_the_same_goes_on(call: Call, run: Path) -> None:
    code, _, err = call("run", "quickstart", "--resume", run.name)
    assert code == 2
    assert "has another plan" in err
    assert call("run", *MORE_RANKS_THAN_CORES, "--resume", run.name)[0] == 0


def test_a_dry_run_says_what_it_does_not_read_of_ones_own_configuration(call: Call, tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text(
        '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 3}, "dump_state": true}'
    )
    (tmp_path / "mine.yaml").write_text(
        "axes: {model: gpt2-10m, strategy: zero3, optimizer: fused_adamw, world_size: 1, ds_config_file: own.json}\n"
    )
    code, out, _ = call("run", "mine.yaml", "--dry-run")
    assert code == 0
    trial, note = out.splitlines()
    assert trial.startswith("run ")
    assert note == f"note      {tmp_path / 'own.json'}: dump_state: not used in this trial: it is about what is printed"


def test_a_resume_with_nothing_to_do_leaves_the_tables_as_they_are(call: Call, run: Path) -> None:
    before = {table: table.stat().st_mtime_ns for table in run.glob("*.[cp][sa][vr]*")}
    assert len(before) == 7
    assert call("run", "--resume", run.name)[0] == 0
    assert {table: table.stat().st_mtime_ns for table in before} == before
    (run / "memory.csv").unlink()
    assert call("run", "--resume", run.name)[0] == 0
    assert (run / "memory.csv").exists()


def test_a_dry_run_of_a_resume_lists_what_is_kept(call: Call, run: Path) -> None:
    code, out, _ = call("run", "--resume", run.name, "--dry-run")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["skipped", "skipped"]


def test_a_torn_record_is_one_line_that_names_the_file(call: Call, run: Path, tmp_path: Path) -> None:
    record = next(run.glob("trials/*/record.json"))
    record.write_text('{"schema_version": 1, ')
    refused(call("show"), str(record.relative_to(tmp_path)))


@pytest.mark.parametrize(
    ("line", "choices"),
    [
        ("zerobench ", list(DECLARED)),
        ("zerobench pl", ["plan"]),
        ("zerobench plan --global", ["--global-batch"]),
        ("zerobench compare --fa", ["--fail-on"]),
        ("zerobench plan --model llama3.2-3", ["llama3.2-3b"]),
        ("zerobench tune qwen2.5-1.", ["qwen2.5-1.5b"]),
        ("zerobench models phi3-m", ["phi3-mini"]),
        ("zerobench run qui", ["quickstart"]),
        ("zerobench show lat", ["latest_20261124-101500"]),
        ("zerobench compare --against ma", ["main"]),
        ("zerobench strategies zero", ["zero0", "zero1", "zero2", "zero3"]),
    ],
)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_options_and_the_names_that_they_take(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str, line: str, choices: list[str]
) -> None:
    for made in ("latest_20261124-101500", "baselines/main"):
        (tmp_path / "reports" / made).mkdir(parents=True)
        (tmp_path / "reports" / made / "plan.json").touch()
    for name, value in {
        "_ZEROBENCH_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }.items():
        monkeypatch.setenv(name, value)
    _, out, err = call()
    assert err == ""
    pattern = r'(?<!:)"([^"]+)"(?=[:)]|$)' if shell == "zsh" else r"^[^\t\n]+"
    words = set(re.findall(pattern, out, re.MULTILINE))
    assert words == set(choices) if len(choices) == 1 else words >= set(choices)
