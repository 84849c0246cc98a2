"""Plans of sweeps that tests write."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.config.machines import CPU
from zerobench.config.derived.machine import Machine
from zerobench.config.sweep.expand import PlannedTrial, expand
from zerobench.config.sweep.sweep import load_sweep


@pytest.fixture
def plan(tmp_path: Path) -> Any:
    """Expand a sweep of these axes, of a small Llama at stage 3 unless they say otherwise."""

    def make(
        axes: dict[str, Any], machine: Machine = CPU, sets: Sequence[str] = (), only: Sequence[str] = (), **fields: Any
    ) -> list[PlannedTrial]:
        document = {"axes": {"model": "llama-10m", "strategy": "zero3"} | axes, **fields}
        (tmp_path / "s.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
        return expand(load_sweep(str(tmp_path / "s.yaml"), sets, only), machine)

    return make
