"""Where a TPU is looked for."""

import pytest

from zerobench.spec.tpu import address


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, "local"),
        ({"TPU_NAME": "local"}, "local"),
        ({"TPU_NAME": "pod-1"}, None),
        ({"TPU_CONFIG": "grpc://10.0.0.2"}, None),
    ],
)
def test_a_tpu_is_this_machines_own_unless_a_variable_names_another(environ: dict[str, str], found: str | None) -> None:
    assert address(environ) == found
