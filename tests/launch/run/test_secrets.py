"""What a person wrote into a sweep is kept and shown without secrets, or refused where it is needed as it stands."""

import json
from pathlib import Path
from typing import Any

import pytest

from zerobench.common.errors import UserError
from zerobench.config.models.presets import resolve_model
from zerobench.config.sweep.expand import PlannedTrial
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.secrets import refuse_secrets
from zerobench.launch.run.setup import lay_out, new_run_folder, resolved_configs
from zerobench.records.folder import RunFolder

SECRET = "hunter2hunter2"  # noqa: S105 -- one that is made up
URL = f"https://me:{SECRET}@example.org/logs"


def trial(**fields: Any) -> TrialSpec:
    work = {"model": resolve_model("llama-20m"), "strategy": "zero2", "gpus_per_node": 2, "evidence": "formula"}
    return TrialSpec.model_validate(work | fields)


def laid_out(tmp_path: Path, one: TrialSpec, **sweep: Any) -> RunFolder:
    plan = [PlannedTrial(trial=one)]
    configs = resolved_configs(plan)
    run = new_run_folder(tmp_path, sweep.get("name", "a sweep"))
    lay_out(run, plan, configs, sweep, {})
    return run


def test_a_description_and_a_name_are_kept_without_their_secrets(tmp_path: Path) -> None:
    run = laid_out(tmp_path, trial(), description=f"as on {URL}", axes={"model": "llama-20m"}, name=f"see {URL}")
    kept = {path: path.read_text() for path in run.path.rglob("*") if path.is_file()}
    assert [str(path) for path, text in kept.items() if SECRET in text or SECRET in str(path)] == []
    assert "as on https://[REDACTED]@example.org/logs" in kept[run.sweep]


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"ds_config": {"tensorboard.output_path": URL}}, r"ds_config\.tensorboard\.output_path"),
        ({"nvme_path": URL}, "nvme_path"),
        ({"data": {"kind": "tokens", "path": f"/data/hf_{'aB3' * 8}/tokens.bin"}}, r"data\.path"),
    ],
)
def test_a_secret_that_a_trial_needs_as_it_stands_is_refused_before_anything_is_written(
    tmp_path: Path, fields: dict[str, Any], place: str
) -> None:
    with pytest.raises(UserError, match=rf"^{place}: looks like a secret[^\n]*$") as refusal:
        laid_out(tmp_path, trial(**fields))
    assert SECRET not in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


def test_a_secret_in_the_deepspeed_config_of_a_trial_is_refused() -> None:
    config = {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": URL}}}
    refusal = r"^ds_config\.zero_optimization\.offload_param\.nvme_path: looks like a secret"
    with pytest.raises(UserError, match=refusal):
        refuse_secrets(trial(strategy="zero3"), config)


def test_a_secret_that_no_trial_reads_is_kept_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    own = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}, "wandb": {"enabled": False, "team": URL}}
    file.write_text(json.dumps(own))
    planned = PlannedTrial(trial=trial(ds_config_file=str(file)))
    assert URL not in json.dumps(resolved_configs([planned]))


def test_names_in_a_model_s_config_and_ordinary_paths_are_no_secrets() -> None:
    words = {"eos_token": "<|endoftext|>", "_name_or_path": "/hub/models--a--b/snapshots/" + "0a" * 20}
    model = resolve_model("llama-20m")
    model = model.model_copy(update={"hf_config": {**(model.hf_config or {}), **words}})
    refuse_secrets(trial(model=model, nvme_path="/mnt/nvme0/pat@swap", ds_config_file="/home/me/keys/ds.json"), {})
