import json
from pathlib import Path
from typing import Any

import pytest

from tests.tools.refusals import one_line
from zerobench.common.errors import UserError
from zerobench.common.resources import shipped
from zerobench.config.deepspeed import build_ds_config, load_user_config
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import TrialSpec

LLAMA = ModelSpec(name="llama-tiny", hf_config={"model_type": "llama", "hidden_size": 256})
TRIAL: dict[str, Any] = {"model": LLAMA, "gpus_per_node": 2}
ADAMW = {"type": "AdamW", "params": {"torch_adam": True}}


def built(folder: Path, config: Any, strategy: str = "zero2", **fields: Any) -> dict[str, Any]:
    path = folder / "my.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return build_ds_config(TrialSpec(**TRIAL | {"strategy": strategy, "ds_config_file": str(path)} | fields))


def test_a_file_replaces_the_generated_config_but_for_batch_sizes_clipping_and_optimizer(tmp_path: Path) -> None:
    file = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2, "overlap_comm": True}}
    config = built(tmp_path, file, micro_batch_size=3, gradient_accumulation_steps=5)
    optimizer = config.pop("optimizer")
    assert optimizer["params"]["torch_adam"] is True
    assert config == file | {
        "train_batch_size": 30,
        "train_micro_batch_size_per_gpu": 3,
        "gradient_accumulation_steps": 5,
        "gradient_clipping": 1.0,
    }


def test_auto_values_are_filled_in_as_transformers_does(tmp_path: Path) -> None:
    file = {
        "train_batch_size": "auto",
        "gradient_clipping": "auto",
        "bfloat16": {"enabled": "auto"},
        "fp16": {"enabled": "auto", "loss_scale_window": 100},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto", "warmup_max_lr": "auto"}},
        "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "prefetch_bucket_size": "auto"},
        "aio": {"block_size": "auto"},
    }
    config = built(tmp_path, file, "zero3")
    assert config["train_batch_size"] == 2
    assert config["bf16"] == {"enabled": True}
    assert config["fp16"] == {"enabled": False, "loss_scale_window": 100}
    assert config["optimizer"]["params"] == {"lr": 3e-4, "betas": [0.9, 0.95], "torch_adam": True}
    assert "scheduler" not in config  # the trial's own rates are set before every step
    assert config["zero_optimization"]["reduce_bucket_size"] == 256 * 256
    assert config["zero_optimization"]["stage3_prefetch_bucket_size"] == int(0.9 * 256 * 256)
    assert config["aio"] == {}
    assert "auto" not in json.dumps(config)


def test_sections_that_are_null_are_left_out_and_the_stage_is_always_there(tmp_path: Path) -> None:
    config = built(tmp_path, {"bf16": {"enabled": True}, "fp16": None, "zero_optimization": None}, "zero0")
    assert "fp16" not in config
    assert config["zero_optimization"] == {"stage": 0}
    file = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2, "offload_optimizer": None}}
    assert built(tmp_path, file)["zero_optimization"] == {"stage": 2}


def test_overrides_are_laid_over_the_file_last(tmp_path: Path) -> None:
    file = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2, "reduce_bucket_size": 7}}
    config = built(tmp_path, file, ds_config={"zero_optimization.reduce_bucket_size": 9})
    assert config["zero_optimization"] == {"stage": 2, "reduce_bucket_size": 9}


def test_the_trial_decides_where_states_are_swapped_to(tmp_path: Path) -> None:
    spec = {"strategy": "zero3", "optimizer": "cpu_adam", "offload_optimizer": "nvme", "nvme_path": str(tmp_path)}
    config = built(
        tmp_path,
        {
            "bf16": {"enabled": True},
            "optimizer": {"type": "Adam"},
            "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/local_nvme"}},
        },
        **spec,
    )
    assert config["zero_optimization"]["offload_optimizer"]["nvme_path"] == str(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"zero_optimization": {"stage": 3}}, "zero_optimization.stage is 3, but the trial's zero_stage is 2"),
        ({"zero_optimization": {}}, "zero_optimization.stage is 0, but the trial's zero_stage is 2"),
        ({"bf16": {"enabled": False}}, "is 'fp32', but the trial's precision is 'bf16'"),
        ({"optimizer": {"type": "SGD"}}, "the optimizer it makes is 'sgd', but the trial's optimizer is 'adamw'"),
        (
            {"optimizer": {"type": "AdamW"}},
            "the optimizer it makes is 'fused_adamw', but the trial's optimizer is 'adamw'",
        ),
        ({"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}}, "Adam with adam_w_mode: false"),
        (
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
            "offload_optimizer.device is 'cpu', but the trial's offload_optimizer is 'none'",
        ),
        ({"zero_optimization": {"stage": 2, "overlap_com": True}}, "did you mean 'zero_optimization.overlap_comm'?"),
        ({"bfloat16": {"enabled": True}}, "bf16 is given twice, once as bfloat16"),
    ],
)
def test_a_file_that_contradicts_the_trial_is_refused_with_both_sides(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    file = {"bf16": {"enabled": True}, "optimizer": ADAMW, "zero_optimization": {"stage": 2}}
    assert built(tmp_path, file)["zero_optimization"] == {"stage": 2}
    with one_line(message, start=f"{tmp_path / 'my.json'}: "):
        built(tmp_path, file | change)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n  "fp16": {,}\n}', "line 2 column 12: "),
        ('{"a": 1} // comment', "line 1 column 10: Extra data; must be plain JSON, without comments"),
        ('{"bf16": {}, "bf16": {}}', "key 'bf16' is given twice in one section"),
        ('{"gradient_clipping": NaN}', "NaN is not JSON"),
        ("[1]", "is a JSON object, not a list"),
        ("", "line 1 column 1"),
        ("[" * 100_000, "recursion"),
        ('{"optimizer": ' * 30 + "1" + "}" * 30, "more than 20 nested sections"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "my.json"
    path.write_text(text)
    with one_line(message, str(path)):
        load_user_config(path)


def test_a_file_that_is_no_text_a_folder_or_missing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    for path, message in (
        (tmp_path / "binary.json", "codec can't decode"),
        (tmp_path / "none.json", "no such file; shipped ones: zero0.json"),
        (tmp_path, f"ds_config_file: {str(tmp_path)!r}: Is a directory; give a file"),
    ):
        with pytest.raises(UserError, match=message):
            load_user_config(path)


def test_a_shipped_config_is_found_by_its_name_alone_but_a_file_of_that_name_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_user_config("zero3.json") == json.loads((shipped("ds_configs") / "zero3.json").read_text())
    (tmp_path / "zero3.json").write_text("{}")
    assert load_user_config("zero3.json") == {}
