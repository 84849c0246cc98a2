"""Every module that is mutated has its own tests, by the layout alone; those of the fast tier kill first."""

import pytest

from benchmarks.mutants.judges import JUDGES
from benchmarks.mutants.mirror import PACKAGES, Mirror, Package, file_of, mirror_of, without
from benchmarks.mutants.mutants import SLOWER_TESTS, rounds_of
from benchmarks.mutants.trial import Round
from tests.fast_tier import MARKER
from tests.tools.imports import ROOT

MODULES = ROOT / "zerobench"


def test_a_modules_tests_are_those_of_its_name_and_those_that_import_it_in_the_folder_that_mirrors_its_own() -> None:
    found = mirror_of(MODULES / "estimate" / "memory" / "terms" / "activations.py")
    assert found.nearest[0] == "tests/estimate/memory/test_activations.py"
    assert "tests/estimate/memory/test_timeline.py" in found.nearest
    assert "tests/estimate/memory/test_torch_strategies.py" not in found.nearest
    assert all(name.startswith("tests/estimate/memory/") for name in (*found.nearest, *found.others))


def test_a_module_in_a_folder_without_a_mirror_has_the_mirror_of_the_folder_above() -> None:
    found = mirror_of(MODULES / "estimate" / "memory" / "deepspeed" / "stage_3_offload.py")
    assert "tests/estimate/memory/test_deepspeed.py" in found.nearest


def test_a_module_that_nothing_in_its_mirror_reaches_has_the_fast_tests_that_import_it() -> None:
    assert mirror_of(MODULES / "common" / "units.py").nearest[0] == "tests/common/test_units.py"
    assert "tests/config/sweep/test_plan.py" in mirror_of(MODULES / "config" / "derived" / "frontier_axes.py").nearest


def test_what_imports_the_module_is_not_imported_before_its_mutants() -> None:
    module = MODULES / "estimate" / "memory" / "terms" / "kept.py"
    before = without(module, mirror_of(module))
    assert "zerobench.estimate.memory.terms.activations" not in before  # its package imports the mutant
    assert "zerobench.config.trial.trial" in before


@pytest.mark.parametrize("module", JUDGES)
def test_judges_that_are_named_for_a_module_stand_in_their_files_and_judge_alone(module: str) -> None:
    found = mirror_of(MODULES / module)
    assert (found.nearest, found.others) == (JUDGES[module], ())
    for test in found.nearest:
        name = test.partition("::")[2].partition("[")[0] or "test_"
        assert f"def {name}" in file_of(test).read_text(encoding="utf-8")


@pytest.mark.parametrize("package", PACKAGES, ids=lambda one: one.name)
def test_every_module_that_does_anything_has_tests(package) -> None:
    modules = [path for path in package.modules() if path.name != "__init__.py"]
    assert modules
    assert [path.name for path in modules if not mirror_of(path).nearest] == []


TESTS = Mirror(
    ("tests/rank/ledger/test_naming.py", "tests/config/rules/test_rules.py"), ("tests/rank/ledger/test_ledger.py",)
)


def test_a_file_outside_of_the_fast_tier_is_not_read_in_its_name() -> None:
    fast, others = Round(("tests/config/rules/test_rules.py",), MARKER), Round((), MARKER)
    assert rounds_of(Package("config/trial", needs_torch=False), TESTS) == (fast, others)
    slower = Round(TESTS.nearest, SLOWER_TESTS)
    assert rounds_of(Package("config/trial", needs_torch=True), TESTS) == (fast, slower, others)
