import json
import re
from typing import Any

import pytest

from zerobench.common.resources import shipped
from zerobench.config.deepspeed import build_ds_config, check_ds_config, load_user_config
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import TrialSpec

FILES = sorted(shipped("ds_configs").glob("*.json"))


def trial_of(name: str) -> TrialSpec:
    """The trial that the file's name speaks of."""
    place = "nvme" if "nvme" in name else "cpu" if "cpu" in name else "none"
    fields: dict[str, Any] = {"offload_optimizer": place, "offload_param": place if "offload_param" in name else "none"}
    fields |= {"nvme_path": "/nvme"} if place == "nvme" else {}
    fields |= {"optimizer": "cpu_adam"} if place != "none" else {}
    model = ModelSpec(name="tiny", hf_config={"model_type": "llama"})
    return TrialSpec(model=model, strategy=name[:5], ds_config_file=f"{name}.json", **fields)


def test_there_is_one_for_each_stage_and_each_offload() -> None:
    stages = {f"zero{stage}" for stage in range(4)}
    offloads = {f"zero{stage}_offload_optimizer_cpu" for stage in (1, 2, 3)}
    infinity = {"zero3_offload_param_cpu", "zero3_offload_optimizer_nvme", "zero3_offload_param_nvme"}
    assert {path.stem for path in FILES} == stages | offloads | infinity


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_shipped_config_needs_no_one_to_fill_it_in(path: Any) -> None:
    config = load_user_config(path)
    check_ds_config(config, path.name)
    assert '"auto"' not in json.dumps(config)
    assert "train_micro_batch_size_per_gpu" in config
    assert "gradient_clipping" in config


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_trial_may_name_a_shipped_config_by_its_file_name(path: Any) -> None:
    config = build_ds_config(trial_of(path.stem))
    assert config["zero_optimization"]["stage"] == int(path.stem[4])


def test_the_readme_says_what_each_is_for() -> None:
    rows = re.findall(r"^\| `(\w+)\.json` \| .+ \|$", (shipped("ds_configs") / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == [path.stem for path in FILES]
