"""From the words of `zerobench plan` to trials: which cells there are, for which cluster, and one line for nonsense."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tools.at_least_one import at_least_one
from tests.tools.known import known
from tests.tools.refusals import one_line
from zerobench.common.errors import UserError
from zerobench.config.deepspeed import build_ds_config
from zerobench.config.derived.cluster import Cluster, read_cluster, read_rate, read_tokens
from zerobench.config.derived.frontier_axes import FRONTIERS, set_num_layers
from zerobench.config.models.architecture import dimensions
from zerobench.config.models.presets import resolve_model
from zerobench.config.sweep.expand import expand
from zerobench.config.sweep.plan import cells, document, read_stages, read_work
from zerobench.config.sweep.plan_files import own_config, sweep_gpu, sweep_points
from zerobench.config.sweep.sweep import load_sweep, shipped_sweeps
from zerobench.config.trial.optimizers import Optimizer
from zerobench.config.trial.trial import FINE_TUNING, Evidence, Offload, Precision


def cluster(**words: str) -> Cluster:
    """Sixteen H200 in two nodes, with NVMe drives; `words` change it."""
    return read_cluster(**({"gpu": "h200", "gpus": "16", "nvme": "7GB/s"} | words))


def work(**options: Any) -> dict[str, Any]:
    """Llama 2 7B at 2048 tokens."""
    return read_work({"model": "llama-7b", "sequence_length": 2048, **options})


def own(tmp_path: Path, config: dict[str, Any]) -> str:
    """A DeepSpeed configuration of the user's own."""
    path = tmp_path / "own.json"
    path.write_text(json.dumps(config))
    return str(path)


def test_there_are_fourteen_cells_each_a_simulated_trial_that_deepspeed_can_be_configured_for() -> None:
    planned = cells(work(), cluster())
    assert len(planned) == 14
    assert not any(item.skipped for item in planned)
    assert {item.trial.evidence for item in planned} == {Evidence.SIMULATED}
    assert {item.trial.prediction.gpu for item in planned} == {"H200 SXM"}
    assert {(item.trial.num_nodes, item.trial.gpus_per_node) for item in planned} == {(2, 8)}
    for item in planned:
        assert build_ds_config(item.trial)["zero_optimization"]["stage"] == item.trial.zero_stage


def test_without_a_drive_the_five_nvme_cells_are_skipped_with_the_reason() -> None:
    planned = cells(work(), read_cluster(gpu="h200", gpus="8"))
    skipped = [item for item in planned if item.skipped]
    assert len(planned) == 14
    assert len(skipped) == 5
    for item in skipped:
        assert Offload.NVME in {item.trial.offload_optimizer, item.trial.offload_param}
        assert "--nvme 7GB/s" in known(item.skipped).reason


def test_the_optimizer_goes_where_its_states_are() -> None:
    for item in at_least_one(cells(work(), cluster())):
        on_device = item.trial.offload_optimizer is Offload.NONE
        assert item.trial.optimizer is (Optimizer.FUSED_ADAMW if on_device else Optimizer.CPU_ADAM)


def test_a_gpu_without_bf16_is_planned_in_fp16() -> None:
    planned = cells(work(), cluster(gpu="v100"))
    assert {item.trial.precision for item in planned} == {Precision.FP16}


def test_stages_may_be_chosen() -> None:
    assert [item.trial.zero_stage for item in cells(work(), cluster(), read_stages("2,1"))] == [2, 2, 1, 1]


def test_a_plan_is_kept_as_a_sweep_that_comes_to_the_same_trials(tmp_path: Path) -> None:
    place = cluster()
    planned = cells(work(micro_batch_size="4"), place)
    path = tmp_path / "sweep.yaml"
    kept = document("plan", planned)
    assert len(kept["include"]) == len(planned) - 1
    path.write_text(json.dumps(kept))
    again = expand(load_sweep(path), place.machine)
    assert [item.trial for item in again] == [item.trial for item in planned]


@pytest.mark.parametrize(("gpus", "whole"), [("1", "single"), ("8", "ddp")])
def test_adapters_that_no_stage_has_are_planned_with_torchs_strategies(gpus: str, whole: str, tmp_path: Path) -> None:
    place = cluster(gpus=gpus)
    planned = cells(work(adapter="lora-16-fp32"), place)
    refused = [item.trial.strategy for item in planned if item.skipped]
    assert refused == ["zero0", "zero1", "zero2", "zero3"]
    assert {known(item.skipped).rule for item in planned if item.skipped} == {"wide_is_not_cast"}
    left = [(item.trial.strategy, item.trial.offload_param.value) for item in planned if not item.skipped]
    assert left == [(whole, "none"), *([("fsdp", "none")] if whole == "ddp" else []), ("fsdp", "cpu")]
    path = tmp_path / "sweep.yaml"
    path.write_text(json.dumps(document("plan", planned)))
    again = [item.trial for item in expand(load_sweep(path), place.machine) if not item.skipped]
    assert {trial.trial_id for trial in again} == {item.trial.trial_id for item in planned if not item.skipped}


def test_a_stage_that_is_asked_for_by_number_and_has_no_such_adapters_is_refused() -> None:
    with pytest.raises(UserError, match="lora-16-fp32 at zero2: DeepSpeed casts every parameter to bf16"):
        cells(work(adapter="lora-16-fp32"), cluster(), read_stages("2"))
    with pytest.raises(UserError, match="leave -fp32 out"):
        cells(work(adapter="lora-16-fp32", precision="fp32"), cluster())
    assert not any(item.trial.zero_stage is None for item in cells(work(adapter="lora-16"), cluster()))


def test_fewer_gpus_than_a_node_has_are_one_smaller_node() -> None:
    place = cluster(gpus="4")
    assert (place.num_nodes, place.gpus_per_node) == (1, 4)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"gpu": "h20"}, "--gpu: 'h20' is not in the hardware catalogue; did you mean"),
        ({"gpu": "NVIDIA GH200 144G HBM3e"}, "--gpu: memory size of GH200 144GB unknown"),
        ({"gpus": "0"}, "--gpus: '0' is not a whole number from 1 to"),
        ({"gpus": "-8"}, "--gpus: '-8'"),
        ({"gpus": "eight"}, "--gpus: 'eight'"),
        ({"gpus": "1e99"}, "--gpus: '1e99'"),
        ({"gpus": "12"}, "--gpus: 12 GPUs are not a multiple of 8"),
        ({"gpus_per_node": "0"}, "--gpus-per-node: '0'"),
        ({"host_memory": "1T"}, "--host-memory: '1T' is ambiguous"),
        ({"host_memory": "much"}, "--host-memory: 'much' is not a number of bytes"),
        ({"host_memory": "0"}, "--host-memory: '0'"),
        ({"host_memory": "1"}, "--host-memory: '1' has no unit; for example 1TB"),
        ({"host_memory": " 2e12 "}, "--host-memory: ' 2e12 ' has no unit"),
        ({"nvme": "7/s"}, "--nvme: '7' has no unit"),
        ({"nvme": "7GB"}, "--nvme: '7GB' is not a rate; for example 7GB/s"),
        ({"nvme": "7G/s"}, "--nvme: '7G' is ambiguous"),
        ({"nvme": "7GB/h"}, "--nvme: '7GB/h' is not a rate"),
        ({"nvme": "0GB/s"}, "--nvme: '0GB/s'"),
        ({"host_bandwidth": "fast"}, "--host-bandwidth: 'fast' is not a rate"),
    ],
)
def test_a_cluster_that_cannot_be_is_one_line_that_names_the_option(words: dict[str, str], said: str) -> None:
    with one_line(start=said):
        cluster(**words)


@pytest.mark.parametrize(
    ("text", "tokens"), [("300B", 300e9), ("1.5T", 1.5e12), ("3e11", 3e11), ("2 m", 2e6), ("7", 7)]
)
def test_tokens_are_read_as_people_write_them(text: str, tokens: float) -> None:
    assert read_tokens("--tokens", text) == tokens


@pytest.mark.parametrize("text", ["", "B", "many", "300GB", "-3B", "0", "0.1", "nan", "inf", "1e400", "9e9T", "1e999B"])
def test_what_is_no_number_of_tokens_is_refused_in_one_line(text: str) -> None:
    with one_line("--tokens: "):
        read_tokens("--tokens", text)


def test_rates_are_bytes_a_second() -> None:
    assert read_rate("--nvme", " 7 GB/s ") == 7e9
    assert read_rate("--nvme", "1GiB/s") == 2**30


@pytest.mark.parametrize("size", ["1", "0.5", "7e9"])
def test_a_rate_without_a_unit_is_refused_however_small(size: str) -> None:
    with one_line(start=f"--nvme: '{size}' has no unit"):
        read_rate("--nvme", f"{size}/s")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": "llama-7"}, "did you mean 'llama-7b'"),
        ({"micro_batch_size": "0"}, "--micro-batch: '0'"),
        ({"precision": "bf17"}, "did you mean 'bf16'"),
        ({"sequence_length": "long"}, "--sequence-length: 'long'"),
    ],
)
def test_work_that_cannot_be_is_one_line(options: dict[str, str], said: str) -> None:
    with one_line(said):
        work(**options)


def test_a_sequence_longer_than_the_model_is_refused_and_not_skipped_fourteen_times() -> None:
    with pytest.raises(UserError, match=r"gpt2-1\.5b has 1024 positions"):
        cells(work(model="gpt2-1.5b", sequence_length="2048"), cluster())


def test_a_rotary_model_takes_any_length() -> None:
    assert not any(item.skipped for item in cells(work(sequence_length="65536"), cluster(), stages=[3])[:1])


@pytest.mark.parametrize("model_type", ["gemma2", "gptj", "bloom"])
def test_a_model_without_sdpa_is_planned_with_eager_attention(model_type: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": model_type}), encoding="utf-8")
    [first, *_] = cells(work(model=str(file)), cluster())
    assert (first.trial.attention, first.skipped) == ("eager", None)


def test_an_unknown_stage_is_refused_with_the_choices() -> None:
    with pytest.raises(UserError, match=r"--stage: '4' is not known; .*choices: 0, 1, 2, 3"):
        read_stages("3,4")


def test_ones_own_configuration_is_one_trial_that_says_what_the_file_says(tmp_path: Path) -> None:
    config = {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "reduce_bucket_size": 123456},
    }
    [item] = own_config(own(tmp_path, config), work(), cluster())
    trial = item.trial
    assert (trial.zero_stage, trial.offload_optimizer, trial.optimizer) == (3, Offload.CPU, Optimizer.CPU_ADAM)
    assert (trial.micro_batch_size, trial.gradient_accumulation_steps, trial.precision) == (2, 2, Precision.BF16)
    assert build_ds_config(trial)["zero_optimization"]["reduce_bucket_size"] == 123456


def test_auto_is_answered_by_the_options(tmp_path: Path) -> None:
    config = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
    }
    [item] = own_config(own(tmp_path, config), work(micro_batch_size="4"), cluster())
    built = build_ds_config(item.trial)
    assert built["train_batch_size"] == 4 * 16
    assert built["bf16"] == {"enabled": True}


@pytest.mark.parametrize(
    ("sections", "precision"),
    [
        ({"fp16": {"enabled": "auto"}}, Precision.FP16),
        ({"fp16": {"enabled": "auto"}, "bf16": {"enabled": False}}, Precision.FP16),
        ({"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}, Precision.BF16),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": "auto"}}, Precision.FP16),
        ({"fp16": {"enabled": False}, "bf16": {"enabled": "auto"}}, Precision.BF16),
    ],
)
def test_the_precision_is_one_that_ones_own_configuration_leaves_open(
    tmp_path: Path, sections: dict[str, Any], precision: Precision
) -> None:
    [item] = own_config(own(tmp_path, {**sections, "zero_optimization": {"stage": 2}}), work(), cluster())
    assert item.trial.precision is precision


def test_ones_own_configuration_is_fine_tuned_with_the_clipping_that_it_has(tmp_path: Path) -> None:
    asked = {**work(), "hyperparameters": FINE_TUNING}
    for config, clipping in (({}, FINE_TUNING.gradient_clipping), ({"gradient_clipping": 0.5}, 0.5)):
        [item] = own_config(own(tmp_path, {"zero_optimization": {"stage": 2}, **config}), asked, cluster())
        assert item.trial.hyperparameters == FINE_TUNING.model_copy(update={"gradient_clipping": clipping})


def test_zeropp_of_ones_own_configuration_is_planned_as_it_stands(tmp_path: Path) -> None:
    config = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}}
    [item] = own_config(own(tmp_path, config), work(), cluster())
    assert item.trial.hpz_partition_size == 8
    assert not item.trial.quantized_weights


def test_a_drive_is_asked_for_at_stage_3_alone_since_below_it_none_would_help(tmp_path: Path) -> None:
    for stage, said in ((2, "DeepSpeed swaps to NVMe at stage 3 only"), (3, "no NVMe drive")):
        config = {"zero_optimization": {"stage": stage, "offload_optimizer": {"device": "nvme"}}}
        with pytest.raises(UserError, match=said):
            own_config(own(tmp_path, config), work(), read_cluster(gpu="h200", gpus="8"))


def test_every_shipped_configuration_can_be_planned() -> None:
    for path in at_least_one(sorted(Path("ds_configs").glob("*.json"))):
        [item] = own_config(str(path), work(), cluster())
        assert build_ds_config(item.trial)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"zero_optimization": {"stage": 3, "reduce_bucket_sise": 1}},
            "did you mean 'reduce_bucket_size'|reduce_bucket_size",
        ),
        ({"zero_optimization": {"stage": 5}}, "stage"),
        ({"train_batch_size": 7, "zero_optimization": {"stage": 1}}, "train_batch_size 7 is not"),
        ({"optimizer": {"type": "Lamb"}, "zero_optimization": {"stage": 1}}, "Lamb"),
        ({"memory_breakdown": True, "zero_optimization": {"stage": 1}}, "memory_breakdown"),
        (
            {"tensor_parallel": {"autotp_size": 2}, "zero_optimization": {"stage": 1}},
            r"own.json: tensor_parallel.autotp_size: 2: AutoTP is not predicted; choices: 1, or a sweep of strategy t",
        ),
    ],
)
def test_a_typo_in_ones_own_configuration_is_one_line(tmp_path: Path, config: dict[str, Any], said: str) -> None:
    with one_line(match=said):
        own_config(own(tmp_path, config), work(), cluster())


@pytest.mark.parametrize("name", shipped_sweeps())
def test_every_shipped_sweep_can_be_planned(name: str) -> None:
    _, planned = sweep_points(name, cluster())
    ran = [item.trial for item in planned if item.skipped is None]
    assert ran
    assert {trial.evidence for trial in ran} == {Evidence.SIMULATED}
    assert {trial.prediction.gpu for trial in ran} == {"H200 SXM"}


def test_the_gpu_of_a_sweep_is_its_own_unless_another_is_named() -> None:
    assert sweep_gpu("trillion") == "H200 SXM"
    with pytest.raises(UserError, match="--gpu is missing: the sweep has none"):
        sweep_gpu("zero-stages")
    _, planned = sweep_points("trillion", cluster(gpu="b200"))
    assert {item.trial.prediction.gpu for item in planned} == {"B200 SXM"}


def test_a_sweep_of_several_gpus_is_planned_for_one_that_is_named_and_each_point_once(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    axes = {"model": ["llama-10m"], "strategy": ["zero2"], "evidence": ["simulated"], "gpu": ["H200 SXM", "B200 SXM"]}
    file.write_text(json.dumps({"repeats": 3, "axes": axes}))
    with pytest.raises(UserError, match="--gpu is missing: the sweep has 2;"):
        sweep_gpu(str(file))
    assert len(sweep_points(str(file), cluster())[1]) == 1


def test_the_trillion_is_a_trillion_on_1024_gpus() -> None:
    from zerobench.config.models.parameters import count_parameters

    _, planned = sweep_points("trillion", cluster())
    counts = known(count_parameters(planned[0].trial.model))
    assert 1.0e12 < counts.total < 1.02e12
    assert {item.trial.world_size for item in planned} == {1024}


def test_a_deeper_model_differs_in_its_layers_alone() -> None:
    model = resolve_model("llama-7b")
    deeper = set_num_layers(model, 40)
    differing = {key for key, value in deeper.hf_config.items() if model.hf_config.get(key) != value}
    assert differing == {"num_hidden_layers"}
    listed = model.model_copy(update={"hf_config": model.hf_config | {"layer_types": ["full_attention"] * 32}})
    assert len(set_num_layers(listed, 50).hf_config["layer_types"]) == 50
    unsaid = model.model_copy(update={"hf_config": {"model_type": "opt"}})
    assert dimensions(set_num_layers(unsaid, 5)).num_layers == 5


@pytest.mark.parametrize("name", FRONTIERS)
def test_each_frontier_begins_at_the_trial_and_grows_what_it_says(name: str) -> None:
    axis, trial = FRONTIERS[name], cells(work(), cluster())[0].trial
    assert axis.trial_at(trial, axis.start(trial)).world_size == trial.world_size
    assert axis.value(axis.trial_at(trial, axis.start(trial))) == axis.value(trial)
    assert axis.value(axis.trial_at(trial, axis.last(trial))) == axis.most(trial)


def test_rotary_positions_grow_with_the_sequence_and_learned_ones_end_it() -> None:
    axis = FRONTIERS["sequence-length"]
    rotary, learned = (
        cells(work(model=model, sequence_length="1024"), cluster())[0].trial for model in ("llama-7b", "gpt2-1.5b")
    )
    assert axis.trial_at(rotary, 64).model.hf_config["max_position_embeddings"] == 64 * 128
    assert axis.last(learned) == 1024 // 128
