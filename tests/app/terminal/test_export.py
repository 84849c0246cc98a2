"""`zerobench export` as users meet it."""

import sys
from pathlib import Path

import pytest

from tests.app.terminal.conftest import Call
from tests.report.sample_run import completed_trial, spec, write_run
from tests.tools.refusals import refused


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "reports" / "sample_20260102-030405"
    write_run(path, [completed_trial(spec("zero1", gpus_per_node=2))], samples=False)
    return path


def test_a_run_goes_to_each_tool_that_is_asked_for(call: Call, run: Path) -> None:
    pytest.importorskip("prometheus_client")
    pytest.importorskip("tensorboard")
    code, out, err = call("export", run.name, "--prometheus", "a.prom", "--tensorboard", "board")
    assert (code, err) == (0, "")
    assert out.splitlines()[1] == "1 trial in board: tensorboard --logdir board"
    assert Path("a.prom").read_text().startswith("# HELP zerobench_trial_info")
    assert len(list(Path("board").rglob("events.out.tfevents.*"))) == 1


@pytest.mark.parametrize(
    ("option", "value", "module", "package"),
    [
        ("--prometheus", "a.prom", "prometheus_client", "prometheus-client"),
        ("--tensorboard", "board", "tensorboard", "tensorboard"),
        ("--wandb", "project", "wandb", "wandb"),
    ],
)
def test_a_missing_library_is_one_line_with_the_command_that_installs_it(
    call: Call, run: Path, monkeypatch: pytest.MonkeyPatch, option: str, value: str, module: str, package: str
) -> None:
    for name in [name for name in sys.modules if name == module or name.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_Without(module), *sys.meta_path])
    code, out, err = call("export", run.name, option, value)
    line = f"zerobench: {option}: {package} is not installed; install it with: python -m pip install {package}\n"
    assert (code, out, err) == (2, "", line)
    assert not Path(value).exists()


class _Without:
    """A finder that finds every module but one, as on a machine that lacks it."""

    def __init__(self, module: str) -> None:
        self._module = module

    def find_spec(self, name: str, *_: object) -> None:
        if name == self._module or name.startswith(f"{self._module}."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_an_export_to_nowhere_names_the_choices(call: Call, run: Path) -> None:
    refused(call("export", run.name), "--prometheus FILE, --tensorboard DIR, --wandb PROJECT")
