"""What a trial needs is looked for before anything starts."""

from pathlib import Path

import pytest

from tests.report.sample_run import spec
from zerobench.common.errors import UserError
from zerobench.config.derived.availability import FRAMEWORKS
from zerobench.config.trial.trial import Evidence
from zerobench.launch.machine import installed
from zerobench.launch.machine.installed import check_installed, requirement


def without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    """An environment that lacks `missing`."""
    monkeypatch.setattr(installed, "package_folder", lambda name: None if name in missing else Path(name))


def test_where_everything_is_installed_nothing_is_said() -> None:
    check_installed([spec("zero1"), spec("zero1", evidence=Evidence.SIMULATED)])


def test_formulas_need_no_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, *FRAMEWORKS)
    check_installed([spec("zero1", evidence=Evidence.FORMULA)])
    check_installed([])


@pytest.mark.parametrize("evidence", [Evidence.MEASURED, Evidence.SOLO, Evidence.SIMULATED])
def test_whatever_runs_a_rank_needs_them(monkeypatch: pytest.MonkeyPatch, evidence: Evidence) -> None:
    without(monkeypatch, *FRAMEWORKS)
    with pytest.raises(UserError, match=rf"^torch, deepspeed and transformers are not .* {evidence} trials need them"):
        check_installed([spec("zero1", evidence=Evidence.FORMULA), spec("zero1", evidence=evidence)])


def test_only_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "deepspeed")
    with pytest.raises(UserError, match=r"^deepspeed is not installed here, and measured trials need it: .*'deepspeed"):
        check_installed([spec("zero1")])


def test_a_requirement_has_the_range_of_the_projects_own_metadata_and_no_namesake() -> None:
    assert requirement("torch") == "torch>=2.11"
    assert requirement("deepspeed") == "deepspeed>=0.19.7"
    assert requirement("rich") == "rich>=13.9"  # of the core
    assert requirement("prometheus-client") == "prometheus-client"  # an extra's, which most do without
    assert requirement("no-such-package") == "no-such-package"
