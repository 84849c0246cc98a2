"""Where a TPU is looked for."""

from pathlib import Path

import pytest

from zerobench.config.hardware.tpu import address, may_answer


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, "local"),
        ({"TPU_NAME": "local"}, "local"),
        ({"TPU_NAME": "pod-1"}, None),
        ({"TPU_CONFIG": "grpc://10.0.0.2"}, None),
    ],
)
def test_a_tpu_is_this_machines_own_unless_a_variable_names_another(
    environ: dict[str, str], found: str | None, tmp_path: Path
) -> None:
    assert address(environ) == found
    assert may_answer(environ, tmp_path) == bool(environ)
    (tmp_path / "accel0").touch()
    assert may_answer(environ, tmp_path)
