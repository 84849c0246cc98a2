"""Whatever is given as a sweep, a setting or a filter comes to trials, or to one line for the person who wrote it."""

import copy
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from zerobench.common.errors import UserError
from zerobench.config.axes.axes import READERS
from zerobench.config.derived.machine import Accelerator, Machine
from zerobench.config.rules.rules import AT_HAND
from zerobench.config.sweep.expand import PlannedTrial, expand
from zerobench.config.sweep.overlay import SECTIONS, SINGLE
from zerobench.config.sweep.sweep import SweepFile, load_sweep, shipped_sweeps

MACHINES = (
    Machine(accelerator=Accelerator.CPU, cpu_cores=2, host_memory_bytes=16 * 2**30, supports_fp16=False),
    Machine(accelerator=Accelerator.CUDA, num_gpus=8, cpu_cores=64, host_memory_bytes=512 * 2**30, num_nodes=2),
    Machine(accelerator=Accelerator.CUDA, num_gpus=3, cpu_cores=8, gpu_names=("NVIDIA H200",) * 3, num_nodes=3),
)
DOCUMENTS = {name: yaml.safe_load(path.read_text()) for name, path in shipped_sweeps().items()}

fuzz = settings(max_examples=150, deadline=None)

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**40), 10**40)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(
        ["auto", "5e8", "nvme", "zero3", "zero4", "llama-20m", "gpt2", "a/b", "../x.json", "~nobody", "", "0"]
    )
    | st.sampled_from(["measured", "solo", "simulated", "formula", "h200", "A100", "h201", "NVIDIA ", "last", "none"])
    | st.sampled_from([0, -1, 1, 2, 3, 7, 13, 64, 2**20 - 3, 2**20, 2**31, 2**63, 1e308, float("nan"), float("inf")])
)
names = st.text(max_size=8) | st.sampled_from(
    [*READERS, *SweepFile.model_fields, "stage", "reduce_bucket_size", "hf_config"]
)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4), max_leaves=12
)


@pytest.fixture(autouse=True, scope="module")
def _no_network() -> Iterator[None]:
    """A made-up name may look like a hub id; nobody is asked about it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        yield


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "sweep.yaml"


def outcome(file: Path, sets: Sequence[str] = (), only: Sequence[str] = ()) -> list[PlannedTrial] | str:
    """The trials on every machine, or the one line; anything else fails the test."""
    try:
        sweep = load_sweep(str(file), sets, only)
        planned = [trial for machine in MACHINES for trial in expand(sweep, machine)]
    except UserError as error:
        line = str(error)
        assert line.splitlines() == [line]
        assert line.isprintable()
        assert 10 < len(line) < 1500
        return line
    assert planned
    assert all(trial.skipped is None or trial.skipped.reason.isprintable() for trial in planned)
    return planned


def write(file: Path, document: object) -> None:
    file.write_text(yaml.safe_dump(document, allow_unicode=True), encoding="utf-8")


@fuzz
@given(document=anything)
def test_any_nested_structure_is_a_sweep_or_one_line(file: Path, document: object):
    write(file, document)
    outcome(file)


@fuzz
@given(content=st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8")))
def test_any_bytes_are_a_sweep_or_one_line(file: Path, content: bytes):
    file.write_bytes(content)
    outcome(file)


@fuzz
@given(axis=st.sampled_from(list(READERS)), value=anything)
def test_any_value_of_an_axis_is_taken_or_refused_by_the_name_of_the_axis(file: Path, axis: str, value: object):
    write(file, {"axes": {"model": "llama-10m", "strategy": "zero3"} | {axis: value}})
    told = outcome(file)
    assert not isinstance(told, str) or axis in told or "multiply" in told


@fuzz
@given(field=st.sampled_from([name for name in SweepFile.model_fields if name != "axes"]), value=anything)
def test_any_value_of_a_field_is_taken_or_refused_by_the_name_of_the_field(file: Path, field: str, value: object):
    write(file, {"axes": {"model": "llama-10m", "strategy": "zero3"}, field: value})
    told = outcome(file)
    assert not isinstance(told, str) or field in told


def places(document: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where every value of a document lies."""
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [place] * bool(place) + [deep for key, value in inner for deep in places(value, (*place, key))]


def parent(document: Any, place: tuple[Any, ...]) -> Any:
    for key in place[:-1]:
        document = document[key]
    return document


@fuzz
@given(name=st.sampled_from(list(DOCUMENTS)), where=st.randoms(use_true_random=False), value=anything)
def test_a_shipped_sweep_with_any_value_in_any_place_is_a_sweep_or_one_line(
    file: Path, name: str, where: random.Random, value: object
):
    document = copy.deepcopy(DOCUMENTS[name])
    place = where.choice(places(document))
    parent(document, place)[place[-1]] = value
    write(file, document)
    outcome(file)


@fuzz
@given(
    name=st.sampled_from(list(DOCUMENTS)), where=st.randoms(use_true_random=False), letter=st.characters(codec="ascii")
)
def test_a_shipped_sweep_with_a_letter_put_into_any_key_is_refused_by_that_key(
    file: Path, name: str, where: random.Random, letter: str
):
    document = copy.deepcopy(DOCUMENTS[name])
    place = where.choice([place for place in places(document) if isinstance(place[-1], str)])
    at = where.randrange(len(place[-1]) + 1)
    misspelt = place[-1][:at] + letter + place[-1][at:]
    within = parent(document, place)
    within[misspelt] = within.pop(place[-1])
    write(file, document)
    told = outcome(file)
    assert isinstance(told, str)
    assert misspelt in told or repr(misspelt)[1:-1] in told


evidences = st.sampled_from(["measured", "solo", "simulated", "formula"])
some_gpus = st.sampled_from(["auto", "none", None, "h200", "a100", "T4"])
some_ranks = st.sampled_from([0, 1, 7, 63, "last"])
sizes = st.sampled_from(["auto", 1, 2, 3, 5, 8, 12, 13, 64, 1024, 2**20 - 3])


@fuzz
@given(
    axes=st.fixed_dictionaries(
        {
            "evidence": st.lists(evidences, min_size=1, max_size=4),
            "gpu": st.lists(some_gpus, min_size=1, max_size=2),
            "rank": st.lists(some_ranks, min_size=1, max_size=2),
            "strategy": st.lists(st.sampled_from(["single", "zero1", "zero3"]), min_size=1, max_size=2),
        },
        optional={
            "world_size": st.lists(sizes, min_size=1, max_size=2),
            "offload_optimizer": st.sampled_from(["none", "cpu", "nvme"]),
            "nvme_path": st.lists(st.sampled_from([None, "/a", "/b"]), min_size=1, max_size=2),
            "precision": st.sampled_from(["bf16", "fp16", "fp32"]),
            "attention": st.sampled_from(["sdpa", "flash_attention_2"]),
        },
    )
)
def test_any_mix_of_evidences_comes_to_trials_that_are_never_alike_and_hold_only_what_means_something(
    file: Path, axes: dict[str, Any]
):
    write(file, {"axes": {"model": "llama-10m"} | axes})
    for machine in MACHINES:
        try:
            planned = expand(load_sweep(str(file)), machine)
        except UserError as error:
            line = str(error)
            assert "gpu" in line or "rank" in line
            continue
        trials = [one.trial for one in planned]
        assert len({trial.trial_id for trial in trials}) == len(trials)
        for one in planned:
            trial, prediction = one.trial, one.trial.prediction
            assert one.skipped is not None or prediction.rank < trial.world_size
            assert prediction.rank == 0 or trial.evidence.plays_one_rank
            assert prediction.gpu is None or not trial.evidence.needs_device
            assert trial.evidence.needs_device or one.skipped is None or one.skipped.rule not in AT_HAND


fixed_names = [f"{part}.{field}" for part, fields in SECTIONS.items() for field in fields]
ds_names = ["ds_config.reduce_bucket_size", "ds_config.stage", "ds_config.", "ds_config.optimizer.params.lr"]
set_names = st.sampled_from([*READERS, *SINGLE, *fixed_names, *ds_names, "include", ""])
values = st.text(max_size=20) | st.text("[]{},:'\"#&*!|>%@`-=0123456789ae. ", max_size=20) | scalars.map(str)


@fuzz
@given(text=st.text(max_size=30) | st.builds("{}={}".format, set_names | st.text(max_size=10), values))
def test_any_setting_and_any_filter_is_taken_or_refused_in_one_line(text: str):
    for option, told in (
        ("--set", outcome(Path("quickstart"), sets=[text])),
        ("--only", outcome(Path("quickstart"), only=[text])),
    ):
        assert not isinstance(told, str) or option in told
