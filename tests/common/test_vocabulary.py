"""Words of memory and of endings as people read them."""

import pytest

from zerobench.common.vocabulary import Category, Phase, Place, Status, StepKind


@pytest.mark.parametrize(("name", "words"), [
    (Category.PARAMETERS, "parameters"),
    (Category.MASTER_WEIGHTS, "master weights"),
    (Category.REST_OF_PROCESS, "rest of process"),
    (Category.OPTIMIZER_STATES_ON_NVME, "optimizer states on nvme"),
    (Status.OUT_OF_DEVICE_MEMORY, "out of device memory"),
    (Status.CRASH, "crash"),
])  # fmt: skip
def test_a_name_is_read_without_underscores(name: Category | Status, words: str) -> None:
    assert name.words == words


def test_no_two_names_of_a_kind_are_read_alike() -> None:
    for kind in (Category, Status):
        assert len({name.words for name in kind}) == len(kind)


def test_records_are_read_by_these_values() -> None:
    """What is on disk stays readable."""
    assert [one.value for one in Phase] == ["init", "forward", "backward", "step"]
    assert [one.value for one in Place] == ["device", "host", "nvme"]
    assert [one.value for one in StepKind] == ["first", "steady"]
    assert {one.name.lower() for one in Status} == {one.value for one in Status}
    assert {one.name.lower() for one in Category} == {one.value for one in Category}
