"""Host memory per parameter: who holds how many bytes, and what page-locking rounds up."""

import pytest

from benchmarks.prediction.simulated import TINY, gpu_trial
from tests.report.explain.runs import BUCKETS, OFFLOADED, QUICKSTART, named
from tests.report.sample_run import SampleTrial, trial_record
from tests.tools.kept_simulator import Simulate
from zerobench.config.models.parameters import count_parameters
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.optimizers import deepspeeds_adamw
from zerobench.report.figures.host_parameters import Holder, holders


def per_parameter(holder: Holder) -> float:
    return 0.0 if holder.steady is None else holder.steady.a_parameter


def test_offloaded_states_take_four_bytes_a_parameter_each_however_many_ranks_divide_them():
    found = {one.name: one for one in holders(named(BUCKETS, OFFLOADED).trial)}
    for name in ("fp32 masters", "first moment", "second moment", "fp32 gradients"):
        assert per_parameter(found[name]) == pytest.approx(4, rel=1e-3)
    parts = [per_parameter(one) for name, one in found.items() if name != "together"]
    assert sum(parts) == pytest.approx(per_parameter(found["together"]), rel=1e-3)
    for held in (found["together"].load, found["together"].init, found["together"].steady):
        assert held is not None
        assert held.node_bytes == 8 * (held.rank_bytes or 0) > 0


def test_a_trial_that_offloads_nothing_has_no_such_table():
    assert list(holders(named(QUICKSTART, "zero2").trial)) == []


def test_sixteen_bytes_become_twenty_eight_where_page_locking_rounds_up_to_powers_of_two(simulate: Simulate):
    """10 bytes a parameter are pinned at start-up (fp32 masters and gradients, a 16-bit copy), 8 come with the first
    step: 18 without page-locking, and close to twice 10 and 8 where the rank's part lies just above a power of two.
    """
    vocabulary = 509
    for _ in range(2):  # its parameters grow with the vocabulary in a straight line
        model = resolve_model({**TINY, "hidden_size": 256, "num_layers": 10, "vocab_size": vocabulary})
        counted = count_parameters(model)
        assert counted is not None
        vocabulary += -(-(2**23 + 4096 - counted.total) // 512)
    offloaded = {"offload_optimizer": "cpu", "optimizer": deepspeeds_adamw(offloaded=True)}
    pinned = gpu_trial(model, 2, 1, **offloaded)
    not_pinned = gpu_trial(
        model, 2, 1, **offloaded, ds_config={"zero_optimization.offload_optimizer.pin_memory": False}
    )
    totals = []
    for trial, rank in zip((pinned, not_pinned), simulate([pinned, not_pinned]), strict=True):
        found = {one.name: per_parameter(one) for one in holders(SampleTrial(trial, trial_record(trial), [rank]))}
        totals.append(found["together"] - 2 * (found["staging copies"] - 2))  # a gradient on its way
    assert totals[0] == pytest.approx(28, abs=0.2)
    assert totals[1] == pytest.approx(18, abs=0.2)
