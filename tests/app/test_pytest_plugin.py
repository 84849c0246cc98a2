"""A test's memory is gated by its marker, as pytest runs it in somebody's own project."""

import tomllib

import pytest

from tests.tools.imports import ROOT
from zerobench.report.tables import gate  # noqa: F401 -- it brings NumPy, which a process loads once, and pytester unloads

pytest_plugins = ["pytester"]
GIB = 2**30


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever plugins are installed here, the plugin alone is loaded, by its module."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def write(pytester: pytest.Pytester, limit: str, activations: int) -> None:
    pytester.makepyfile(
        test_own=f"""
            import pytest

            @pytest.mark.zerobench_memory({limit!r})
            def test_step(zerobench_memory):
                zerobench_memory({{"parameters": {10 * GIB}, "activations": {activations}}})
        """
    )


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest("-p", "zerobench.app.pytest_plugin", "--strict-markers", *options)


@pytest.mark.parametrize(
    ("limit", "activations", "passes"),
    [
        ("2%", GIB, True),
        ("2%", GIB + 200 * 2**20, True),
        ("2%", GIB + 300 * 2**20, False),
        ("100MiB", GIB + 100 * 2**20, True),
        ("100MiB", GIB + 101 * 2**20, False),
        ("0%", GIB - 1, True),
        ("0%", GIB + 1, False),
    ],
)
def test_memory_may_grow_by_the_limit_and_no_more(
    pytester: pytest.Pytester, limit: str, activations: int, passes: bool
) -> None:
    write(pytester, limit, GIB)
    run(pytester, "--zerobench-update").assert_outcomes(passed=1)
    write(pytester, limit, activations)
    found = run(pytester)
    found.assert_outcomes(passed=int(passes), failed=int(not passes))
    if not passes:
        found.stdout.fnmatch_lines([f"*11.00 GiB to *, more than {limit}: activations +*"])


def test_a_gate_without_anything_kept_is_red(pytester: pytest.Pytester) -> None:
    write(pytester, "2%", GIB)
    found = run(pytester)
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["*no stored value for this test*pytest --zerobench-update*"])


def test_a_limit_that_is_none_is_said_in_a_line(pytester: pytest.Pytester) -> None:
    write(pytester, "2", GIB)
    run(pytester).stdout.fnmatch_lines(["*zerobench_memory('2'): *unit missing*"])


def test_pip_makes_it_known_to_pytest() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"zerobench": "zerobench.app.pytest_plugin"}
