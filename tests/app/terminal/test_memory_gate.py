"""The GitHub action and the workflow to copy, run by hand: the shell steps, as GitHub's runner does them."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tools.imports import ROOT

WORKFLOW = ROOT / "docs/memory-gate.yml"
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
SWEEP = """
name: gate
axes:
  {model: gpt2-125m, strategy: zero2, world_size: 8, sequence_length: 512, ds_config_file: ds.json, evidence: formula}
"""
KEPT_ONCE = re.search(r"Keep the baseline once: (.*), then commit reports/baselines/main", WORKFLOW.read_text())


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the sweep, its configuration, and `zerobench` where the shell finds it."""
    (tmp_path / "gate.yaml").write_text(SWEEP)
    configure(tmp_path, 500_000_000)
    command = tmp_path / "bin" / "zerobench"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m zerobench "$@"\n')
    command.chmod(0o755)
    return tmp_path


def configure(project: Path, bucket: int) -> None:
    zero = {"stage": 2, "reduce_bucket_size": bucket}
    (project / "ds.json").write_text(json.dumps({"bf16": {"enabled": True}, "zero_optimization": zero}))


def bash(project: Path, script: str, variables: Mapping[str, str] = {}) -> int:
    own = {
        "PATH": f"{project / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "RUNNER_TEMP": str(project),
        "GITHUB_STEP_SUMMARY": str(project / "summary.md"),
    }
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    done = subprocess.run(
        command, cwd=project, env={**os.environ, **own, **variables}, capture_output=True, check=False
    )
    return done.returncode


def gate(project: Path, given: Mapping[str, str]) -> list[int]:
    """The exit status of each of the action's shell steps after the installation; a failure leaves out the next."""
    defaults: dict[str, str] = {name: one.get("default", "") for name, one in ACTION["inputs"].items()}
    inputs = {**defaults, **given}
    codes: list[int] = []
    for step in ACTION["runs"]["steps"][2:]:
        if any(codes) and step.get("if") != "always()":
            continue
        read = {
            name: value.removeprefix("${{ inputs.").removesuffix(" }}") for name, value in step.get("env", {}).items()
        }
        codes.append(bash(project, step["run"], {name: inputs[source] for name, source in read.items()}))
    return codes


def test_the_gate_may_read_and_no_more() -> None:
    assert yaml.safe_load(WORKFLOW.read_text())["permissions"] == {"contents": "read"}


def given() -> dict[str, str]:
    """What the workflow to copy gives the action."""
    [job] = yaml.safe_load(WORKFLOW.read_text())["jobs"].values()
    [step] = [step for step in job["steps"] if "zerobench@" in step["uses"]]
    values: dict[str, str] = step["with"]
    return values


def test_the_workflow_gives_the_action_what_it_takes() -> None:
    needed = {name for name, one in ACTION["inputs"].items() if one.get("required")}
    assert needed <= set(given()) <= set(ACTION["inputs"])


def test_the_action_installs_the_package_that_it_lies_in() -> None:
    steps: list[dict[str, Any]] = ACTION["runs"]["steps"]
    assert steps[1]["run"] == 'python -m pip install "$GITHUB_ACTION_PATH[run]"'
    assert (ROOT / "pyproject.toml").is_file()


def test_no_input_stands_in_a_script_that_a_shell_runs() -> None:
    assert [step["run"] for step in ACTION["runs"]["steps"] if "${{" in step.get("run", "")] == []


def test_the_gate_is_green_on_what_the_baseline_was_and_red_on_more(project: Path) -> None:
    assert KEPT_ONCE is not None
    assert bash(project, KEPT_ONCE[1]) == 0
    assert gate(project, given()) == [0, 0, 0]
    assert "- Passed" in (project / "summary.md").read_text()
    configure(project, 600_000_000)
    assert gate(project, given()) == [0, 1, 0]
    assert "FAILED" in (project / "summary.md").read_text()


def test_the_gate_says_what_changed_where_the_configuration_is_another_file(project: Path) -> None:
    assert KEPT_ONCE is not None
    assert bash(project, KEPT_ONCE[1]) == 0
    configure(project, 900_000_000)
    (project / "ds.json").rename(project / "ds_large.json")
    (project / "gate.yaml").write_text(SWEEP.replace("ds.json", "ds_large.json"))
    assert gate(project, given()) == [0, 1, 0]
    _, _, _, _, verdict, changed, *_ = (project / "summary.md").read_text().splitlines()
    assert verdict.startswith("- FAILED memory:2%: zero2, device ")
    assert changed == r"- configuration changed: reduce_bucket_size 5e8 -\> 9e8"


def test_without_a_baseline_it_is_red_and_nothing_else_fails(project: Path) -> None:
    assert gate(project, given()) == [0, 2, 0]
