"""The optimizer of a stage under RPC unscales and clips gradients, and updates fp32 masters at the requested rate."""

import pytest
import torch

from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import TrialSpec
from zerobench.rank.strategies.rpc_stage import StageOptimizer

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.mark.parametrize(("precision", "scale"), [("fp32", 1.0), ("bf16", 1.0), ("fp16", 4096.0)])
@pytest.mark.parametrize("clip", [1.0, 0.25])
def test_a_gradient_is_unscaled_clipped_applied_at_the_rate_and_let_go(
    precision: str, scale: float, clip: float
) -> None:
    trial = TrialSpec(
        model=ModelSpec(name="gpt2", hf_config={"model_type": "gpt2"}),
        strategy="rpc-pipeline",
        optimizer="sgd",
        precision=precision,
    )
    weight = torch.nn.Parameter(torch.ones(3, dtype=DTYPES[precision]))
    idle = torch.nn.Parameter(torch.ones(1, dtype=DTYPES[precision]))
    made = StageOptimizer([weight, idle], trial)
    assert made.loss_scale == scale
    for param_group in made.inner.param_groups:
        param_group.update(momentum=0.0, weight_decay=0.0)
    made.prepare(clip, 0.5)
    weight.grad = torch.full_like(weight, 0.5 * scale)
    made.step()
    expected = torch.full((3,), 1 - 0.5 * clip * 0.5)
    assert torch.equal(made.updated[0].detach(), expected)
    assert torch.equal(weight.detach(), expected.to(weight.dtype))
    assert torch.equal(idle.detach(), torch.ones_like(idle))
    assert weight.grad is None
    assert made.updated[0].grad is None
    assert (len(made.masters) == 2) == (precision != "fp32")
    assert 0 < made.busy_s < 60
