"""What would make a category smaller is advice that the trial's own strategy can follow."""

from pathlib import Path

import pytest

from benchmarks.prediction.simulated import gpu_trial
from tests.report.sample_run import RUN_ID, skipped_trial, spec, write_run
from tests.tools.known import known
from zerobench.app.search.formula import formula_trial
from zerobench.common.vocabulary import Category
from zerobench.records.store import load_run
from zerobench.records.trials import Trial, num_trained
from zerobench.report.explain.memory_causes import cause
from zerobench.report.explain.remedies import remedy

STATES = (Category.PARAMETERS, Category.GRADIENTS, Category.FIRST_MOMENT, Category.OTHER_OPTIMIZER_STATES)


def trial(tmp_path: Path, strategy: str) -> Trial:
    asked = spec(strategy, gpus_per_node=2, gradient_accumulation_steps=2)
    write_run(tmp_path / RUN_ID, [skipped_trial(asked, "a rule")])
    [found] = load_run(tmp_path / RUN_ID).trials()
    return found


def test_gradients_of_adapters_in_fp32_are_told_by_their_own_bytes() -> None:
    for adapter, element in (("lora-16-fp32", 4), ("lora-16", 2)):
        found = formula_trial(gpu_trial("llama-7b", 0, 2, strategy="ddp", adapter=adapter, evidence="formula"))
        said = known(cause(found, Category.GRADIENTS, element * known(num_trained(found))))
        assert said.startswith(f"{element} bytes x ")
        assert said.endswith("trained parameters")


@pytest.mark.parametrize("category", STATES)
@pytest.mark.parametrize(
    ("strategy", "told"),
    [
        ("parameter-server", "a strategy that partitions states (zero1 to zero3, fsdp)"),
        ("tensor", "more ranks to partition the model over"),
        ("rpc-pipeline", "more ranks to partition the model over"),
    ],
)
def test_strategies_without_stages_are_not_told_to_take_a_higher_one(
    tmp_path: Path, strategy: str, told: str, category: Category
) -> None:
    assert remedy(trial(tmp_path, strategy), category, 10**9) == told


@pytest.mark.parametrize(
    ("strategy", "category", "told"),
    [("ddp", Category.GRADIENTS, "stage 2 or higher"), ("zero1", Category.PARAMETERS, "stage 3 or offload_param: cpu")],
)
def test_where_a_stage_would_divide_a_state_it_is_told(
    tmp_path: Path, strategy: str, category: Category, told: str
) -> None:
    assert (remedy(trial(tmp_path, strategy), category, 10**9) or "").startswith(told)
