"""In which order modules are entered and left."""

from tests.estimate.memory.test_pipeline import trial
from zerobench.estimate.memory.terms.module_order import Visit, module_order

BLOCKS = 4


def test_modules_around_others_are_entered_once_a_pass_and_are_not_told_as_left() -> None:
    """The model and its decoder, and each block, its attention and its MLP."""
    visits = module_order(trial("zero3"), (), ()).visits
    forward = visits[: visits.index(Visit(is_backward=True))]
    left = sum(visit.leaves for visit in forward)
    assert len(forward) - 2 * left == 2 + 3 * BLOCKS
