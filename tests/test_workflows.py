"""What GitHub would run: workflows whose targets exist, and issue forms that ask for what this package prints."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tools.imports import ROOT
from zerobench.launch.machine.tried_versions import TRIED

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(set((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")) - {GITHUB / "ISSUE_TEMPLATE" / "config.yml"})


def commands(workflow: Path) -> list[str]:
    content: dict[str, Any] = yaml.safe_load(workflow.read_text(encoding="utf-8"))
    return [step["run"] for job in content["jobs"].values() for step in job["steps"] if "run" in step]


def test_every_make_target_of_a_workflow_is_one_of_the_makefile() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    used = {name for file in WORKFLOWS for line in commands(file) for name in re.findall(r"\bmake ([\w-]+)", line)}
    assert used >= {"check", "docs", "test", "test-fast"}
    assert used <= targets


def test_the_fast_tier_runs_on_the_first_and_the_last_python_that_was_tried() -> None:
    jobs = yaml.safe_load((GITHUB / "workflows" / "tests.yml").read_text(encoding="utf-8"))["jobs"]
    assert tuple(jobs["fast"]["strategy"]["matrix"]["python"]) == TRIED["python"]


def test_no_workflow_may_write_but_the_release_which_holds_no_token() -> None:
    held = {file.stem: yaml.safe_load(file.read_text(encoding="utf-8")) for file in WORKFLOWS}
    assert {name: content["permissions"] for name, content in held.items()} == {
        name: {"contents": "read"} for name in held
    }
    assert held["release"]["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert [file.name for file in WORKFLOWS if "secrets." in file.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize("form", FORMS, ids=lambda form: str(form.stem))
def test_an_issue_form_asks_for_what_doctor_prints_as_json(form: Path) -> None:
    body = yaml.safe_load(form.read_text(encoding="utf-8"))["body"]
    assert {entry["id"]: entry["attributes"]["label"] for entry in body}["doctor"] == "zerobench doctor --json"
