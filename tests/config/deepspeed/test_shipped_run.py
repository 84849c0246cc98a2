"""The shipped configurations, and those built from trials, under the bare deepspeed launcher on two CPU ranks.

DeepSpeed's CPU kernels are compiled at their first use on a machine, which takes minutes.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tools.at_least_one import at_least_one
from zerobench.common.resources import shipped
from zerobench.config.deepspeed import build_ds_config
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.optimizers import Optimizer
from zerobench.config.trial.trial import HyperparameterSpec, TrialSpec
from zerobench.launch.run.launcher import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

SCRIPT = Path(__file__).parents[2] / "tools" / "run_ds_configs.py"
SHIPPED = sorted(path.stem for path in shipped("ds_configs").glob("*.json"))
NUM_PARAMS = 2 * (1024 * 1024 + 1024)
PARTITION = NUM_PARAMS // 2
BUCKET = 2_500_000
"""Elements; more than the model has, so that all its gradients go through the bucket."""
PEAKS = [f"bf16 zero{stage} sgd" for stage in range(4)]
MODEL = ModelSpec(name="unused", hf_config={"model_type": "llama"})


def trial(stage: int, **fields: Any) -> TrialSpec:
    overrides: dict[str, Any] = {"zero_optimization.reduce_bucket_size": BUCKET}
    if stage == 3:
        overrides["zero_optimization.stage3_max_reuse_distance"] = 0
        overrides["zero_optimization.stage3_prefetch_bucket_size"] = 0
    return TrialSpec(model=MODEL, strategy=f"zero{stage}", gpus_per_node=2, ds_config=overrides, **fields)


def built_trials(swap: str) -> dict[str, TrialSpec]:
    """Every optimizer at every stage in fp32, where losses must agree; and in bf16 what only that shows."""
    trials = {}
    for optimizer in (Optimizer.ADAMW, Optimizer.SGD, Optimizer.FUSED_ADAMW):
        for stage in range(4):
            trials[f"fp32 zero{stage} {optimizer}"] = trial(stage, precision="fp32", optimizer=optimizer)
    for optimizer in (Optimizer.ADAMW, Optimizer.SGD, Optimizer.CPU_ADAM):
        for stage in (1, 2, 3):
            name = f"fp32 zero{stage} offload {optimizer}"
            trials[name] = trial(stage, precision="fp32", optimizer=optimizer, offload_optimizer="cpu")
    for stage in range(4):
        trials[f"bf16 zero{stage} adamw"] = trial(stage)
        still = HyperparameterSpec(weight_decay=0.0)  # with it, torch's SGD makes a temporary
        trials[f"bf16 zero{stage} sgd"] = trial(stage, optimizer="sgd", hyperparameters=still)
    trials["bf16 zero3 param nvme"] = trial(
        3, optimizer="cpu_adam", offload_optimizer="nvme", offload_param="nvme", nvme_path=swap
    )
    return trials


@pytest.fixture(scope="module")
def swap_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on a disk that takes O_DIRECT, as NVMe swapping needs; temporary folders may lie in memory."""
    parents = [tmp_path_factory.getbasetemp(), Path.cwd(), Path.home()]
    with tempfile.TemporaryDirectory(dir=next(parent for parent in parents if takes_o_direct(parent))) as folder:
        yield Path(folder)


def takes_o_direct(folder: Path) -> bool:
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        try:
            os.close(os.open(file.name, os.O_RDWR | os.O_DIRECT))
        except OSError:
            return False
    return True


@pytest.fixture(scope="module")
def results(kernels: None, tmp_path_factory: pytest.TempPathFactory, swap_disk: Path) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("run")
    configs = {name: shipped_config(name, swap_disk / name) for name in SHIPPED}
    configs |= {name: build_ds_config(spec) for name, spec in built_trials(str(swap_disk)).items()}
    (folder / "configs.json").write_text(json.dumps({"configs": configs, "peaks": PEAKS}))
    launch(folder / "configs.json", folder / "results.json")
    loaded: dict[str, dict[str, Any]] = json.loads((folder / "results.json").read_text())
    return loaded


def shipped_config(name: str, swap: Path) -> dict[str, Any]:
    """The file as it ships, but for the two values that depend on machine and model: where to swap, and buffers for
    the largest parameter.
    """
    config: dict[str, Any] = json.loads((shipped("ds_configs") / f"{name}.json").read_text())
    for section in ("offload_optimizer", "offload_param"):
        offload = config["zero_optimization"].get(section, {})
        if offload.get("device") == "nvme":
            offload["nvme_path"] = str(swap)
            if section == "offload_param":
                offload["buffer_size"] = NUM_PARAMS
    return config


def launch(configs: Path, results: Path) -> None:
    """Run the script under the deepspeed launcher, as a process group of its own that is killed whole on timeout."""
    bin_folder = Path(sys.executable).parent
    command = [str(bin_folder / "deepspeed"), "--num_accelerators", "2", "--master_port", str(free_port())]
    environment = os.environ | {
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{bin_folder}:{os.environ['PATH']}",  # the compilation looks for ninja
    }
    process = subprocess.Popen(
        [*command, str(SCRIPT), str(configs), str(results)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=1400)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert results.exists(), output[-4000:]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_config_trains_under_bare_deepspeed(name: str, results: dict[str, dict[str, Any]]) -> None:
    result = results[name]
    assert "error" not in result, result["error"]
    assert result["stage"] == int(name[4])
    assert result["losses"][0] > result["losses"][1] > result["losses"][2]
    assert result["losses"][0] == pytest.approx(results["zero0"]["losses"][0], rel=1e-6)
    assert result["optimizer"] == ("DeepSpeedCPUAdam" if "offload" in name else "AdamW")
    assert (result["swapped_bytes"] > 0) == ("nvme" in name)


def test_every_built_config_makes_the_optimizer_that_was_asked_for(results: dict[str, dict[str, Any]]) -> None:
    classes = {"adamw": "AdamW", "sgd": "SGD", "fused_adamw": "FusedAdam", "cpu_adam": "DeepSpeedCPUAdam"}
    for name, spec in at_least_one(built_trials("unused").items()):
        assert "error" not in results[name], f"{name}: {results[name]['error']}"
        assert results[name]["optimizer"] == classes[spec.optimizer], name
        assert results[name]["stage"] == spec.zero_stage, name
        assert results[name]["gradient_clipping"] == spec.hyperparameters.gradient_clipping, name


@pytest.mark.parametrize("family", ["sgd", "adamw"])
def test_losses_agree_over_stages_and_offload_in_fp32(family: str, results: dict[str, dict[str, Any]]) -> None:
    reference = results[f"fp32 zero0 {family}"]["losses"]
    same = {
        name: result
        for name, result in results.items()
        if name.startswith("fp32") and ("sgd" in name) == (family == "sgd")
    }
    assert len(same) == (7 if family == "sgd" else 14)
    for name, result in same.items():
        assert result["losses"] == pytest.approx(reference, abs=5e-6), name


def test_stage_3_keeps_its_reduce_bucket_and_stages_1_and_2_only_in_backward(
    results: dict[str, dict[str, Any]],
) -> None:
    assert results["bf16 zero3 adamw"]["bucket_elements_at_end"] == BUCKET
    for stage in (1, 2):
        assert results[f"bf16 zero{stage} adamw"]["bucket_elements_at_end"] == 0


def test_moments_appear_at_the_first_step_but_for_stage_0_in_16_bits(results: dict[str, dict[str, Any]]) -> None:
    assert results["bf16 zero0 adamw"]["state_elements_at_init"] == 2 * NUM_PARAMS
    assert results["fp32 zero0 adamw"]["state_elements_at_init"] == 0
    for stage in (1, 2, 3):
        result = results[f"bf16 zero{stage} adamw"]
        assert (result["state_elements_at_init"], result["state_elements"]) == (0, 2 * PARTITION)


def test_what_departures_say_of_16_bit_training_is_what_its_tensors_take(results: dict[str, dict[str, Any]]) -> None:
    """P parameters on two ranks, in bytes: 2 P of weights, 4 P / 2 of master weights, and what departs from that."""
    p, bucket = NUM_PARAMS, 2 * BUCKET
    slack = 0.02 * p  # activations, norms, the batch
    zero0, zero1, zero2, zero3 = (results[name] for name in PEAKS)
    for result in (zero1, zero2):
        assert result["live_bytes_at_end"] == pytest.approx(4 * p, abs=slack)
        # The partition's gradients, and for the norm the largest, which is half of all parameters, in fp64; later
        # less: their flat copy and that in fp32.
        assert result["step_peak_bytes"] == pytest.approx(4 * p + p + 8 * p / 2, abs=slack)
    # All gradients and the bucket; at stage 2 the bucket and the partition's.
    assert zero1["backward_peak_bytes"] == pytest.approx(4 * p + 2 * p + bucket, abs=slack)
    assert 4 * p + p + bucket <= zero2["backward_peak_bytes"] < zero1["backward_peak_bytes"] + slack
    # Half the weights and their gradients all the time, and the bucket.
    assert zero3["live_bytes_at_end"] == pytest.approx(p + 2 * p + p + bucket, abs=slack)
    assert zero3["step_peak_bytes"] == pytest.approx(4 * p + bucket + p + 2 * p, abs=slack)
    # Stage 0: a flat copy to all-reduce, and fp32 gradients at the step.
    assert zero0["backward_peak_bytes"] == pytest.approx(6 * p + 2 * p + 2 * p, abs=slack)
    assert zero0["step_peak_bytes"] == pytest.approx(6 * p + 2 * p + 4 * p, abs=slack)


def test_in_fp32_stages_1_to_3_keep_a_second_copy_of_the_weights(results: dict[str, dict[str, Any]]) -> None:
    p = NUM_PARAMS
    slack = 0.02 * p
    for stage in (1, 2):
        assert results[f"fp32 zero{stage} sgd"]["live_bytes_at_end"] == pytest.approx(4 * p + 2 * p, abs=slack)
    bucket = 4 * BUCKET
    assert results["fp32 zero3 sgd"]["live_bytes_at_end"] == pytest.approx(2 * p + 2 * p + 2 * p + bucket, abs=slack)


def test_nvme_offload_swaps_parameters_and_states_to_the_trial_s_own_folder(
    results: dict[str, dict[str, Any]],
) -> None:
    states_bytes = 3 * 4 * NUM_PARAMS
    weights_bytes = 2 * 2 * 1024 * 1024  # biases are too small to be swapped
    assert results["bf16 zero3 param nvme"]["swapped_bytes"] >= states_bytes + weights_bytes
