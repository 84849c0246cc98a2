"""Tests of the fast tier kill first, and files that are not in it are read only where torch may be."""

from benchmarks.mutants.mirror import Mirror, Package
from benchmarks.mutants.mutants import SLOWER_TESTS, rounds_of
from benchmarks.mutants.trial import Round
from tests.fast_tier import MARKER

TESTS = Mirror(("tests/memory/test_naming.py", "tests/sweeping/test_rules.py"), ("tests/memory/test_ledger.py",))


def test_a_file_outside_of_the_fast_tier_is_not_read_in_its_name() -> None:
    fast, others = Round(("tests/sweeping/test_rules.py",), MARKER), Round((), MARKER)
    assert rounds_of(Package("spec", needs_torch=False), TESTS) == (fast, others)
    slower = Round(TESTS.nearest, SLOWER_TESTS)
    assert rounds_of(Package("spec", needs_torch=True), TESTS) == (fast, slower, others)
