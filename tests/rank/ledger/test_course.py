"""A phase's course: a few instants of it by category, the peak and both ends among them."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from zerobench.common.vocabulary import Category, Phase, StepKind
from zerobench.rank.ledger.course import Courses, course
from zerobench.rank.ledger.replay import Walk, replay

STEADY, BACKWARD = StepKind.STEADY, Phase.BACKWARD
CATEGORIES = (Category.GRADIENTS, Category.ACTIVATIONS, None)


def born_at(site):
    """A storage that was allocated there."""
    return SimpleNamespace(birth=SimpleNamespace(name=site))


def entered(deltas, points=8):
    """The course of things that are born and die in turn, and the composition that it was made of."""
    alive, events = [], []
    for number, (category, size) in enumerate(deltas):
        events.append(((category, number, size), size))
        alive.append(events[-1][0])
        if size % 3 == 0:
            dead = alive.pop(0)
            events.append((dead, -dead[2]))
    live = [(thing, thing[2]) for thing in alive]
    here = replay(live, events, lambda thing: thing[0], lambda thing: born_at(f"model.py:{thing[2] % 2}"))
    assert here.walk is not None
    return course(STEADY, BACKWARD, here.walk, points), here


@given(st.lists(st.tuples(st.sampled_from(CATEGORIES), st.integers(1, 90)), min_size=1, max_size=200))
def test_its_largest_instant_is_the_ledgers_peak_and_its_last_what_is_live(deltas):
    found, here = entered(deltas)
    totals = [sum(sizes) for sizes in zip(*found.sizes_bytes.values(), strict=True)]
    assert max(totals) == here.total_peak
    assert totals[-1] == here.live.total()
    assert found.events[0] == 0
    assert found.events[-1] == found.num_events
    assert found.events == sorted(set(found.events))
    assert len(found.events) <= 8 + 2
    at = totals.index(here.total_peak)
    by_category = {category: sizes[at] for category, sizes in found.sizes_bytes.items() if sizes[at]}
    assert sum(by_category.values()) == here.at_peak.total()


def test_a_category_names_the_site_that_most_of_its_bytes_came_from():
    found, _ = entered([(Category.GRADIENTS, 10), (Category.GRADIENTS, 21), (None, 4)])
    assert found.sites == {Category.GRADIENTS: "model.py:1", Category.UNATTRIBUTED: "model.py:0"}


def test_a_tensor_of_no_bytes_names_no_site():
    live = [(("a kernel's", ""), 8), (("an empty tensor", "model.py:3"), 0)]
    walk = Walk[Any, Category | None](live, [], lambda _: Category.TEMPORARIES, lambda thing: born_at(thing[1]))
    assert course(STEADY, BACKWARD, walk).sites == {}


def test_of_a_phase_that_is_entered_twice_the_larger_peak_is_kept_and_first_steps_are_not():
    courses = Courses()
    small, large = (entered([(Category.GRADIENTS, size)])[1] for size in (10, 50))
    for here in (small, large, small):
        courses.enter(STEADY, BACKWARD, here)
        courses.enter(StepKind.FIRST, BACKWARD, here)
    courses.enter(StepKind.FIRST, Phase.INIT, small)
    assert [(one.step, one.phase) for one in courses.all()] == [(STEADY, BACKWARD), (StepKind.FIRST, Phase.INIT)]
    assert max(courses.all()[0].sizes_bytes[Category.GRADIENTS]) == 50
    courses.forget(STEADY)
    assert [one.phase for one in courses.all()] == [Phase.INIT]
