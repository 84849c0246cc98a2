"""The size of the matrix library's workspace, by torch's own rules."""

import pytest

from zerobench.config.hardware.hardware import load_catalogue
from zerobench.config.hardware.overheads import workspace_of
from zerobench.rank.ledger.matrix_workspaces import chosen_size


@pytest.mark.parametrize(
    ("configured", "nbytes"),
    [("", 8519680), (":4096:2:16:8", 8519680), (":16:8", 131072), (":4096:8", 33554432), ("what", 8519680)],
)
def test_the_workspace_is_what_the_variable_asks_for(configured, nbytes):
    assert chosen_size(8, {"CUBLAS_WORKSPACE_CONFIG": configured}) == nbytes


def test_of_every_catalogued_gpu_it_is_the_size_that_predictions_take():
    capabilities = {gpu.name: gpu.compute_capability for gpu in load_catalogue() if gpu.compute_capability}
    sizes = {name: chosen_size(int(capability.split(".")[0]), {}) for name, capability in capabilities.items()}
    assert sizes == {name: workspace_of(name).workspace_bytes for name in capabilities}
