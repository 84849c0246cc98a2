"""GPUs as people name them."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tools.refusals import at_most_one_line, one_line
from zerobench.common.errors import UserError
from zerobench.config.hardware.gpu_names import known_gpu
from zerobench.config.hardware.hardware import CATALOGUE_VARIABLE


@pytest.mark.parametrize("name", ["h200", "H200 SXM", "NVIDIA H200", "h200-sxm"])
def test_a_gpu_has_one_short_name_however_it_is_written(name: str):
    assert known_gpu(name).name == "H200 SXM"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("h201", "did you mean 'H200 SXM'"),
        ("rtx-4091", "did you mean 'RTX 4090'"),
        ("a100-90gb", "did you mean 'A100 SXM 80GB' or 'A100 SXM 40GB'"),
        ("abacus", "choices: B300 SXM, "),
        (7, "gpu: 7 is not in the hardware catalogue; choices: "),
        (None, "gpu: null is not in the hardware catalogue"),
        (True, "gpu: true is not in the hardware catalogue"),
    ],
)
def test_an_unknown_gpu_is_one_line_with_the_nearest_names(name: object, hint: str):
    with one_line(hint):
        known_gpu(name)


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("h100-80gb", "H100 SXM"),
        ("v100 32GB", "V100 SXM2 32GB"),
        ("h200-141gb", "H200 SXM"),
        ("4090", "RTX 4090"),
        ("h100-40gb", None),
        ("h100-0gb", None),
        ("80gb", None),
        ("h100-80gb-80gb", None),
        ("H100 80GB HBM3 MIG 1g.10gb", None),
    ],
)
def test_a_size_behind_a_name_is_the_gpus_own_or_the_name_is_unknown(name: str, means: str | None):
    if means is None:
        with pytest.raises(UserError, match="not in the hardware catalogue"):
            known_gpu(name)
    else:
        assert known_gpu(name).name == means


def test_the_option_and_its_other_words_are_in_the_line():
    with pytest.raises(UserError, match=r"^--gpu: 'x' .*; choices: auto, .* all \d+: zerobench models --gpus$"):
        known_gpu("x", "--gpu", also=("auto",))


def test_a_gpu_of_the_users_own_catalogue_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "own.yaml").write_text("gpus: [{name: Abacus 9000, source: mine}]")
    monkeypatch.setenv(CATALOGUE_VARIABLE, str(tmp_path / "own.yaml"))
    assert known_gpu("abacus-9000").name == "Abacus 9000"


@settings(max_examples=100, deadline=None)
@given(name=st.text() | st.integers() | st.floats() | st.lists(st.text(), max_size=3))
def test_anything_is_a_gpu_or_one_printable_line(name: object):
    with at_most_one_line():
        known_gpu(name)
