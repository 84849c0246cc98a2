"""Names of trials: short, and no two alike."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.report.sample_run import model, spec
from zerobench.config.trial.trial import TrialSpec
from zerobench.report.words.labels import brief, labels, shared_lines

BUCKET = "zero_optimization.reduce_bucket_size"


def test_a_name_holds_only_what_varies() -> None:
    assert labels([spec(f"zero{stage}") for stage in range(4)]) == ["zero0", "zero1", "zero2", "zero3"]


def test_what_most_trials_share_is_in_the_names_of_the_others_only() -> None:
    specs = [spec("single", gpus_per_node=1), *(spec(f"zero{stage}") for stage in range(4))]
    assert labels(specs) == ["single n1", "zero0", "zero1", "zero2", "zero3"]
    assert "unless named otherwise: 8 ranks" in shared_lines(specs)
    assert "in names: n: ranks" in shared_lines(specs)


def test_an_evenly_split_axis_is_in_every_name() -> None:
    specs = [spec("zero1", micro_batch_size=size) for size in (1, 2, 4)]
    assert labels(specs) == ["mb1", "mb2", "mb4"]
    assert shared_lines(specs)[0].startswith("all trials: gpt2-345m, zero1, no offload, 8 ranks,")


def test_offload_names_what_is_where() -> None:
    specs = [spec("zero3"), spec("zero3", offload_optimizer="cpu")]
    both = {"offload_optimizer": "nvme", "offload_param": "cpu", "nvme_path": "/n"}
    assert labels([*specs, spec("zero3", **both)])[1:] == ["opt=cpu", "opt=nvme param=cpu"]


def test_varying_deepspeed_keys_are_shortened_while_that_is_clear() -> None:
    specs = [spec("zero2", ds_config={BUCKET: size}) for size in (1_000_000, 500_000_000)]
    assert labels(specs) == ["reduce_bucket=1e6", "reduce_bucket=5e8"]
    clash = [spec("zero2", ds_config={"a.size": 1, "b.size": 2}), spec("zero2", ds_config={"a.size": 2, "b.size": 1})]
    assert labels(clash) == ["a.size=1 b.size=2", "a.size=2 b.size=1"]


def test_a_setting_whose_last_word_says_nothing_is_named_with_its_section() -> None:
    scripts = [spec("zero2", ds_config={"bf16.enabled": on, "fp16.enabled": False}) for on in (True, False, True)]
    assert labels(scripts[:2]) == ["bf16.enabled=true", "bf16.enabled=false"]
    assert "DeepSpeed settings, unless named otherwise: bf16.enabled true, fp16.enabled false" in shared_lines(
        scripts[:1]
    )
    assert labels([spec("zero2", ds_config={"fp16.enabled": on}) for on in (True, False)])[0] == "fp16.enabled=true"


def test_settings_that_most_share_are_said_once_and_none_at_all_are_defaults() -> None:
    settings = {BUCKET: 1e6, "zero_optimization.sub_group_size": 4e6, "zero_optimization.overlap_comm": False}
    specs = [spec("single"), *(spec(f"zero{stage}", ds_config=settings) for stage in range(4)), spec("zero3")]
    assert labels(specs) == ["single", "zero0", "zero1", "zero2", "zero3", "zero3 defaults"]
    said = "reduce_bucket_size 1e6, sub_group_size 4e6, overlap_comm false"
    assert f"DeepSpeed settings, unless named otherwise: {said}" in shared_lines(specs)


def test_settings_whose_last_words_are_equal_are_written_whole() -> None:
    both = {"bf16.enabled": True, "fp16.enabled": False, "zero_optimization.sub_group_size": 4e6}
    said = "bf16.enabled true, fp16.enabled false, sub_group_size 4e6"
    assert f"DeepSpeed settings, unless named otherwise: {said}" in shared_lines([spec("zero3", ds_config=both)] * 2)


def test_settings_that_only_some_stages_read_are_named_where_those_that_read_them_differ() -> None:
    buckets = {BUCKET: 1e6}
    prefetch = {"zero_optimization.stage3_prefetch_bucket_size": 0, "zero_optimization.sub_group_size": 4e6}
    lower = [spec("zero0"), spec("zero1", ds_config=buckets), spec("zero2", ds_config=buckets)]
    specs = [*lower, spec("zero3", ds_config=buckets | prefetch), spec("zero3")]
    assert labels(specs) == ["zero0", "zero1", "zero2", "zero3", "zero3 defaults"]
    said = "reduce_bucket_size 1e6, stage3_prefetch_bucket_size 0, sub_group_size 4e6"
    assert f"DeepSpeed settings, unless named otherwise: {said}" in shared_lines(specs)
    other = spec("zero3", ds_config=buckets | prefetch | {"zero_optimization.sub_group_size": 8e6})
    assert labels([*lower, specs[3], other]) == [
        "zero0",
        "zero1",
        "zero2",
        "zero3 sub_group=4e6",
        "zero3 sub_group=8e6",
    ]


def test_a_setting_of_its_own_is_named_before_those_of_others_that_it_leaves_at_their_defaults() -> None:
    others = [spec(name, ds_config={"a.b": 1, "a.c": 2}) for name in ("zero1", "zero2", "zero3")]
    assert labels([*others, spec("zero0", ds_config={"t.autotp_size": 2})])[-1] == "zero0 autotp=2 defaults"
    partly = spec("zero0", ds_config={"t.autotp_size": 2, "a.b": 1})
    assert labels([*others, partly])[-1] == "zero0 autotp=2 c=default"


def test_a_name_holds_two_settings_at_most_and_counts_the_rest() -> None:
    specs = [spec("zero2", ds_config=dict.fromkeys("abcd", value)) for value in (1, 2)]
    first, second = labels(specs)
    assert first == "a=1 b=1 +2 more"
    assert second == "a=2 b=2 +2 more"


def test_a_key_that_one_of_two_sets_is_named_at_that_one_without_its_stage() -> None:
    key = "zero_optimization.stage3_prefetch_bucket_size"
    assert labels([spec("zero3"), spec("zero3", ds_config={key: 5e7})]) == ["zero3", "prefetch_bucket=5e7"]


def test_trials_that_no_axis_tells_apart_have_their_hash() -> None:
    specs = [spec("zero1", hyperparameters={"seed": seed}) for seed in (1, 2)]
    assert labels(specs) == [f"zero1 {one.config_hash[:6]}" for one in specs]


def predicted(strategy: str, evidence: str, rank: int = 0, gpu: str | None = None) -> TrialSpec:
    return spec(strategy, evidence=evidence, prediction={"rank": rank, "gpu": gpu})


def test_a_predicted_trial_says_so_beside_measured_ones_however_many_it_is_among() -> None:
    for copies in (1, 9):
        simulated = [predicted(f"zero{stage}", "simulated", gpu="H200 SXM") for stage in range(4)] * copies
        specs = [spec("zero3"), predicted("zero3", "solo", rank=7), predicted("zero3", "formula"), *simulated]
        names = labels(specs)
        assert names[:3] == ["zero3", "zero3 solo rank7", "zero3 formula"]
        assert all("simulated on H200 SXM" in name for name in names[3:])
        assert "solo, emulated, simulated, formula: predicted, not measured" in shared_lines(specs)[-1]
        assert any(line.startswith("unless named otherwise") and "measured" in line for line in shared_lines(specs))


def test_a_run_without_measurements_says_so_in_a_line_of_its_own() -> None:
    specs = [predicted(f"zero{stage}", "simulated", gpu="H200 SXM") for stage in range(4)]
    assert labels(specs) == ["zero0", "zero1", "zero2", "zero3"]
    assert shared_lines(specs)[0] == "predicted: simulated on H200 SXM"
    assert not any(line.endswith((", ", "measured")) for line in shared_lines(specs)[1:])
    two = [*specs, predicted("zero3", "simulated", gpu="A100 SXM 80GB")]
    assert labels(two)[-2:] == ["zero3 simulated on H200 SXM", "zero3 simulated on A100 SXM 80GB"]
    assert "predicted, not measured" in shared_lines(two)[-1]


def test_a_measured_run_says_measured_once() -> None:
    lines = shared_lines([spec("zero0"), spec("zero1")])
    assert not any("predicted" in line for line in lines)
    assert "measured" in lines[0]


def test_trials_that_swap_to_different_drives_have_their_paths() -> None:
    on = {"offload_optimizer": "nvme"}
    specs = [spec("zero3", nvme_path=path, **on) for path in ("/fast", "/slow")]
    assert labels([spec("zero3"), *specs]) == ["zero3", "opt=nvme /fast", "opt=nvme /slow"]


def test_trials_of_files_have_their_names_and_their_paths_only_where_those_are_equal() -> None:
    def named(*paths: str) -> list[str]:
        return labels([spec("zero2", ds_config_file=path) for path in paths])

    assert named("/far/away/a.json", "/far/away/b.json") == ["a.json", "b.json"]
    same_name = named("/one/ds.json", "/two/ds.json", "/two/b.json")
    assert same_name == ["ds.json /one/ds.json", "ds.json /two/ds.json", "b.json"]


def specs_of_any_kind() -> st.SearchStrategy[TrialSpec]:
    """Trials that differ in a few of their fields."""
    fields = st.fixed_dictionaries(
        {
            "micro_batch_size": st.integers(1, 3),
            "sequence_length": st.sampled_from([128, 256]),
            "repeat": st.integers(0, 2),
            "activation_checkpointing": st.booleans(),
            "hyperparameters": st.fixed_dictionaries({"seed": st.integers(0, 1)}),
            "evidence": st.sampled_from(["measured", "simulated"]),
            "nvme_path": st.sampled_from([None, "/a", "/b\n"]),
            "model": st.sampled_from(["a", "a\n", "a\x1b"]).map(model),
        }
    )
    return st.builds(lambda stage, fields: spec(f"zero{stage}", **fields), st.integers(0, 3), fields)


@settings(max_examples=50, deadline=None)
@given(st.lists(specs_of_any_kind(), max_size=12))
def test_no_two_trials_have_the_same_name(specs: list[TrialSpec]) -> None:
    names = labels(specs)
    assert len(set(names)) == len(specs)
    assert all(name.isprintable() for name in [*names, *shared_lines(specs)])


@given(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False)))
def test_a_brief_number_is_still_the_number(value: float) -> None:
    assert float(brief(value)) == float(value)
    assert len(brief(value)) <= len(str(value))


def test_what_is_no_number_stays_as_it_is() -> None:
    values = [True, "auto", None, 10**400, float("nan")]
    assert [brief(value) for value in values] == ["true", "auto", "None", "1" + "0" * 400, "nan"]


def test_what_sets_up_ddp_and_fsdp_is_in_their_names() -> None:
    specs = [
        spec("ddp"),
        spec("ddp", bucket_bytes=1_000_000),
        spec("ddp", compression="powersgd"),
        spec("fsdp"),
        spec("fsdp", reshard_after_forward=False),
    ]
    assert labels(specs) == ["ddp", "ddp bucket=1e6", "ddp powersgd", "fsdp", "fsdp kept"]
    assert "bucket=: bytes of DDP's buckets" in " ".join(shared_lines(specs))


def test_what_is_computed_in_another_way_for_speed_is_in_the_names() -> None:
    specs = [spec("ddp"), spec("ddp", cross_entropy="chunked"), spec("zero1", cross_entropy="liger", compile="blocks")]
    assert labels(specs) == ["ddp", "ddp ce=chunked", "zero1 ce=liger compile=blocks"]
    said = " ".join(shared_lines(specs))
    assert "ce=: head and loss computed in chunks of tokens" in said
    assert "compile=: torch.compile of the model" in said


def test_how_a_model_comes_to_be_at_stage_3_is_in_the_names_where_it_is_built_whole() -> None:
    specs = [spec("zero3"), spec("zero3", zero_init=False)]
    assert labels(specs) == ["zero3", "whole"]
    assert "whole: stage 3 of a model built in full on every rank first" in " ".join(shared_lines(specs))


def test_groups_of_ranks_and_quantization_are_in_the_names_as_their_papers_call_them() -> None:
    specs = [
        spec("zero3"),
        spec("zero3", hpz_partition_size=8),
        spec("zero3", hpz_partition_size=8, quantized_weights=True, quantized_gradients=True),
        spec("fsdp", mics_shard_size=4),
    ]
    assert labels(specs) == ["zero3", "zero3 hpz=8", "zero3 hpz=8 qwZ qgZ", "fsdp mics=4"]
    said = " ".join(shared_lines(specs))
    assert "hpz=: group of ranks that holds a second copy of the parameters" in said
    assert "mics=: size of the group that states are sharded over" in said


def test_what_tensorflow_trains_under_is_in_the_names_unless_it_is_a_process_for_each_replica() -> None:
    kinds = ("multi-worker-mirrored", "mirrored", "parameter-server", "tpu")
    specs = [spec("ddp"), *(spec("tensorflow", tf_strategy=kind) for kind in kinds)]
    assert labels(specs)[1:] == ["tensorflow", *(f"tensorflow {kind}" for kind in kinds[1:])]


def test_accumulation_that_follows_from_the_global_batch_is_in_no_name() -> None:
    alike = [spec("zero1", micro_batch_size=size, gradient_accumulation_steps=8 // size) for size in (1, 2, 4)]
    assert labels(alike) == ["mb1", "mb2", "mb4"]
    assert "global batch 64" in shared_lines(alike)[0]
    assert "accumulation" not in " ".join(shared_lines(alike))
    other = [*alike, spec("zero1", micro_batch_size=4)]
    assert len([name for name in labels(other) if "ga" in name]) >= 2


def test_a_key_that_a_trial_leaves_out_has_deepspeeds_own_value_in_its_name() -> None:
    def names(key: str, value: object, strategy: str) -> str:
        others = [spec("zero3", sequence_length=2**n, ds_config={f"zero_optimization.{key}": value}) for n in range(5)]
        return labels([*others, spec(strategy)])[-1]

    assert "sub_group=1e9" in names("sub_group_size", 100_000_000, "zero3").split()
    assert "overlap_comm=true" in names("overlap_comm", False, "zero3").split()
    assert "overlap_comm=false" in names("overlap_comm", True, "zero2").split()


def test_a_key_that_is_left_out_has_another_name_than_its_default_that_is_given() -> None:
    given = [
        spec("zero3", sequence_length=2**n, ds_config={"zero_optimization.sub_group_size": 10**9}) for n in range(5)
    ]
    assert "sub_group=default" in labels([*given, spec("zero3")])[-1].split()
