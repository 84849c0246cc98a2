"""What setup downloads for the emulator is named by the torch and the CUDA that it is for."""

import pytest

from zerobench.common.errors import UserError
from zerobench.emulator.downloads import INDEX_CUDA, header_requirements, requirements_digest, verified

TORCH = "2.13.0"


def test_an_emulator_is_made_anew_for_another_cuda_and_for_another_torch_that_is_laid_over() -> None:
    made = [
        requirements_digest(TORCH, None),
        requirements_digest("2.12.0", None),
        requirements_digest(TORCH, INDEX_CUDA),
        requirements_digest(TORCH, "13.1"),
    ]
    assert len(set(made)) == len(made)
    assert requirements_digest("2.12.0", INDEX_CUDA) == requirements_digest(TORCH, INDEX_CUDA)


@pytest.mark.parametrize(("release", "cuda"), [("9.9.9", None), (TORCH, "99.9")])
def test_without_listed_hashes_a_digest_says_so(release: str, cuda: str | None) -> None:
    assert requirements_digest(release, cuda) == "unverified"


def test_a_release_without_hashes_is_refused_with_those_that_have_some() -> None:
    with pytest.raises(UserError, match=rf"^setup emulator: CUDA 99\.9: .*CUDA {INDEX_CUDA}, .*--unverified"):
        verified(header_requirements("99.9"), "CUDA 99.9")
