"""Every command that prints a result prints it for programs too, as one document whose fields are declared."""

import json
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from tests.app.terminal.conftest import Call
from tests.report.figures.compare.runs import BASE_S, SLOWER_S, lay_out, repeats
from tests.report.sample_run import completed_trial, spec
from zerobench.app.terminal.app import commands
from zerobench.app.terminal.fields import EVERY, FIELDS, Field

SMALL = spec("zero1", gpus_per_node=1)
PLAN = (
    "--model",
    "gpt2-125m",
    "--gpus",
    "2",
    "--gpu",
    "h200",
    "--host-memory",
    "1TB",
    "--formula",
    "--sequence-length",
    "1024",
)
OF_SHOW = "report"
"""Its --json writes the document of `show --json`, to a file or with `--out -` to standard output."""
KINDS: dict[str, type | tuple[type, ...]] = {
    "text": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "object": object,
}


@pytest.fixture
def runs(call: Call, tmp_path: Path) -> Call:
    """Runs a command where the runs before, slower and once lie under reports."""
    lay_out(tmp_path / "reports", "before", repeats(SMALL, BASE_S))
    lay_out(tmp_path / "reports", "slower", repeats(SMALL, SLOWER_S))
    lay_out(tmp_path / "reports", "once", [completed_trial(SMALL)])
    return call


def undeclared(document: Mapping[str, Any], command: str) -> list[str]:
    """What of the document is not as fields.py declares it."""
    fields = {**EVERY, **FIELDS[command]}
    return [f"{path}: {value!r}" for path, value in leaves(document, "", fields) if not declared(path, value, fields)]


def leaves(value: Any, path: str, fields: Mapping[str, Field]) -> Iterator[tuple[str, Any]]:
    found = field_of(path, fields)
    if (found is not None and found.kind.startswith("object")) or not isinstance(value, dict | list):
        yield path, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, f"{path}.{name}".lstrip("."), fields)
    else:
        for inner in value:
            yield from leaves(inner, f"{path}[]", fields)


def field_of(path: str, fields: Mapping[str, Field]) -> Field | None:
    exact = fields.get(path)
    patterns = (name for name in fields if "*" in name)
    inner = next((name for name in patterns if fnmatchcase(path, name.replace("[]", "[[]]"))), None)
    return exact or (fields[inner] if inner and inner.count(".") == path.count(".") else None)


def declared(path: str, value: Any, fields: Mapping[str, Field]) -> bool:
    found = field_of(path, fields)
    if found is None:
        return False
    if value is None:
        return found.kind.endswith("?")
    kind = KINDS[found.kind.removesuffix("?")]
    return isinstance(value, kind) and (found.kind.startswith(("boolean", "object")) or not isinstance(value, bool))


@pytest.mark.parametrize(
    ("arguments", "code", "has"),
    [
        (["models"], 0, "models"),
        (["models", "llama-7b"], 0, "components"),
        (["models", "--gpus"], 0, "gpus"),
        (["baseline", "set", "main", "before"], 0, "baselines"),
        (["doctor"], 0, "checks"),
        (["strategies"], 0, "optimizers"),
        (["sweeps"], 0, "sweeps"),
        (["sweeps", "--axes"], 0, "axes"),
        (["plan", *PLAN], 0, "configurations"),
        (["plan", *PLAN, "--tokens", "1B", "--price", "2"], 0, "configurations"),
        (["plan", *PLAN, "--stage", "1", "--frontier", "micro-batch"], 0, "frontier"),
        (["run", "offload", "--dry-run"], 0, "trials"),
        (["run", "quickstart", "--set", "world_size=4096", "--only", "strategy=zero1"], 0, "run"),
        (["submit", "zero-stages", "--gpus-per-node", "8", "--dry-run"], 0, "arrays"),
        (["show", "before"], 0, "trials"),
        (["status", "before"], 0, "counts"),
        (["explain", "once", "zero1"], 0, "passages"),
        (["compare", "before", "slower"], 0, "trials"),
        (["compare", "before", "slower", "--fail-on", "memory:2%,speed:5%"], 1, "limits"),
        (["export", "before", "--prometheus", "zb.prom"], 0, "exported"),
    ],
)
def test_a_command_prints_one_document_whose_fields_are_declared(
    runs: Call, arguments: list[str], code: int, has: str
) -> None:
    found, out, _ = runs(*arguments, "--json")
    document = json.loads(out)
    assert (found, document["command"]) == (code, arguments[0])
    assert document[has]
    assert undeclared(document, arguments[0]) == []


def test_every_command_has_both() -> None:
    options = {command.name: {name for one in command.params for name in one.opts} for command in commands()}
    assert [name for name, has in options.items() if not {"--json", "--quiet"} <= has] == []
    assert set(FIELDS) == set(options) - {OF_SHOW}


def test_a_watched_command_s_output_makes_room_for_the_document(runs: Call) -> None:
    found, out, _ = runs("watch", "--json", "--", "sh", "-c", "echo mine; exit 3")
    document = json.loads(out)
    assert (found, document["exit_code"]) == (3, 3)
    assert undeclared(document, "watch") == []
    assert Path(document["run"]).is_dir()


def test_quiet_leaves_the_watched_command_s_own_output(runs: Call) -> None:
    assert runs("watch", "-q", "--", "sh", "-c", "echo mine") == (0, "mine\n", "")


def test_setup_says_where_the_environment_lies(runs: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("zerobench.launch.setup.environment_setup._make", lambda own, todo, say, lock: say("made"))
    code, out, err = runs("setup", "horovod", "--folder", str(tmp_path), "--json")
    assert (code, json.loads(out)["folder"]) == (0, str(tmp_path / "horovod"))
    assert undeclared(json.loads(out), "setup") == []
    assert "made" in err


def test_a_quiet_report_is_written_without_a_word(runs: Call, tmp_path: Path) -> None:
    assert runs("report", "before", "--markdown", "--out", "kept.md", "--quiet") == (0, "", "")
    assert (tmp_path / "kept.md").stat().st_size > 0
    assert json.loads(runs("report", "before", "--json", "--out", "-", "--quiet")[1])["trials"]


def test_quiet_prints_nothing_and_leaves_the_exit_status(runs: Call) -> None:
    assert runs("compare", "before", "slower", "--fail-on", "speed:5%", "-q") == (1, "", "")
    assert runs("plan", *PLAN, "--quiet") == (0, "", "")
    code, out, err = runs("compare", "before", "nowhere", "--quiet", "--json")
    assert (code, out) == (2, "")
    assert err.startswith("zerobench: ")


def test_what_is_said_meanwhile_goes_to_standard_error(runs: Call) -> None:
    _, out, err = runs("plan", *PLAN, "--json")
    assert json.loads(out)["best"]
    assert "trials to run" in err
    assert runs("plan", *PLAN, "--json", "--quiet")[2] == ""
