"""Alone in its group, every strategy takes the plain loop's steps, holds what it names, and goes on from its file."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tests.rank.strategies.test_torch_loop import ADAM, CLIPPING, CONFIG, RATES, batches, job_of
from zerobench.common.vocabulary import Phase, Place
from zerobench.config.deepspeed import build_ds_config
from zerobench.config.derived.strategy import uses_deepspeed
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.launcher import free_port
from zerobench.rank.ledger.recorder import Marks, PlainPhases
from zerobench.rank.strategies import make_strategy
from zerobench.rank.strategies.base import Strategy
from zerobench.rank.strategies.pipeline import clip_over_stages
from zerobench.rank.strategies.tensor import clip_cut_gradients
from zerobench.rank.training.grad_norms import GradNorms

Fields = dict[str, Any]
Bytes = dict[str, int]

N = 21664
"""Parameters of the model, in 21 tensors."""
FACTORS = 4 * (2 * (64 + 32) + 2 * (4 * (32 + 32) + 3 * (32 + 48)))
"""Of PowerSGD: four columns for each row and each column of every matrix."""
MOMENTS = {"first_moment": 4 * N, "second_moment": 4 * N, "model_buffers": 64, "other_optimizer_states": 4 * 21}
FLAT = MOMENTS | {"other_optimizer_states": 4, "master_weights": 4 * N}
"""Of ZeRO's optimizers, which update one flat tensor."""
FP32 = MOMENTS | {"parameters": 4 * N}
HALVES = MOMENTS | {"parameters": 2 * N, "master_weights": 4 * N}
COUNTED_ONCE = {category: nbytes for category, nbytes in HALVES.items() if category != "other_optimizer_states"}
"""Of DeepSpeed's FusedAdam, which counts its steps in no tensor."""
FP16, BF16 = {"precision": "fp16"}, {"precision": "bf16"}
FUSED = {"optimizer": "fused_adamw"}
SMALL = {"ds_config": {"zero_optimization.reduce_bucket_size": 1000}}
STAGE_3 = FLAT | {"parameters": 4 * N, "gradients": 4 * N, "reduce_buffers": 4 * 1000}


class Way(NamedTuple):
    """A strategy on one rank."""

    strategy: str
    fields: Fields
    kind: str
    holds: Bytes
    """After four steps."""
    says: Fields
    """In its effective configuration, among much else."""
    phases: str = "fLb" * 3 + "s"
    """Of a step; L is the loss that is told."""


def ddp(hook: str | None, **ours: Any) -> Fields:
    said = {"backend_name": "gloo", "bucket_cap_bytes": 25 * 2**20, "gradient_as_bucket_view": 1}
    return {"ddp": said | {"bucket_sizes": str(4 * N), "comm_hook": hook, "compression": "none", **ours}}


def stage(schedule: str, engine: str, in_flight: int) -> Fields:
    said = {"schedule": schedule, "stage": 0, "num_stages": 1, "blocks": [0, 2], "parameters": N, "micro_batches": 3}
    return {"pipeline": said | {"micro_batches_in_flight": in_flight, "engine": engine}}


def zero(engine: str, *, zero_init: bool = False) -> Fields:
    return {"engine_optimizer": engine, "optimizer": "AdamW", "gradient_clipping": CLIPPING, "zero_init": zero_init}


IN_BUCKETS = FP32 | {"gradients": 4 * N}
ON_ITS_OWN = "torch.distributed.pipelining.Schedule1F1B", "torch.distributed.pipelining.ScheduleGPipe"
DEEPSPEED = {"pipeline_schedule": "deepspeed"}
REDUCED = "fLb" * 3 + "bs"
"""DeepSpeed's pipeline reduces gradients as an instruction of its own."""

WAYS = [
    Way("single", {}, "Single", FP32, {"optimizer": "AdamW", "lr": RATES[-1], "eps": 1e-6, "loss_scale": 1.0}),
    Way("ddp", {}, "Ddp", IN_BUCKETS, ddp(None)),
    Way("ddp", FP16, "Ddp", HALVES | {"gradients": 2 * N}, {"loss_scale": 4096.0}),
    Way("ddp", {"compression": "fp16"}, "Ddp", IN_BUCKETS, ddp("fp16_compress_hook", compression="fp16")),
    Way(
        "ddp",
        {"compression": "powersgd", "bucket_bytes": 2**20},
        "Ddp",
        IN_BUCKETS | {"reduce_buffers": 4 * (N + FACTORS)},
        ddp(
            "powerSGD_hook",
            compression="powersgd",
            bucket_cap_bytes=2**20,
            matrix_approximation_rank=4,
            start_powerSGD_iter=2,
        ),
    ),
    Way(
        "ddp",
        {"compression": "onebit"},
        "Ddp",
        IN_BUCKETS | {"reduce_buffers": 4 * N},
        ddp("one_bit_hook", compression="onebit", first_compressed_step=2),
    ),
    Way("fsdp", {}, "Fsdp", FP32, {}),
    Way("fsdp", BF16, "Fsdp", MOMENTS | {"master_weights": 4 * N}, {}),
    Way("tensor", {}, "Tensor", FP32, {}),
    Way("tensor", BF16, "Tensor", HALVES, {}),
    Way("pipeline", {}, "Pipeline", FP32, stage("1f1b", ON_ITS_OWN[0], 1), "ffLb" * 3 + "s"),
    Way(
        "pipeline",
        {"pipeline_schedule": "gpipe", **FP16},
        "Pipeline",
        HALVES,
        stage("gpipe", ON_ITS_OWN[1], 3),
        "ffL" * 3 + "bbbs",
    ),
    Way(
        "pipeline",
        DEEPSPEED,
        "DeepSpeedPipeline",
        FP32 | {"inputs": 1024, "logits_and_loss": 2 * 16 * 64 * 4 * 2},
        stage("deepspeed", "deepspeed.pipe.PipelineEngine", 1) | {"gradient_clipping": CLIPPING},
        REDUCED,
    ),
    Way(
        "pipeline",
        DEEPSPEED | BF16,
        "DeepSpeedPipeline",
        FLAT | {"parameters": 2 * N, "gradients": 2 * N, "inputs": 1024, "logits_and_loss": 2 * 16 * 64 * 2 * 2},
        {"engine_optimizer": "BF16_Optimizer"},
        REDUCED,
    ),
    Way("zero0", {}, "Zero", FP32, zero("AdamW")),
    Way("zero0", BF16, "Zero", HALVES, zero("FP16_UnfusedOptimizer")),
    Way("zero0", FP16, "Zero", HALVES, zero("FP16_UnfusedOptimizer")),
    Way("zero0", BF16 | FUSED, "Zero", COUNTED_ONCE, zero("FP16_Optimizer") | {"optimizer": "FusedAdam"}),
    Way("zero1", FP16, "Zero", FLAT | {"parameters": 2 * N}, zero("DeepSpeedZeroOptimizer")),
    Way("zero1", BF16, "Zero", FLAT | {"parameters": 2 * N}, zero("DeepSpeedZeroOptimizer")),
    Way("zero2", SMALL, "Zero", FLAT | {"parameters": 4 * N}, zero("DeepSpeedZeroOptimizer")),
    Way("zero3", SMALL, "Zero", STAGE_3, zero("DeepSpeedZeroOptimizer_Stage3", zero_init=True)),
    Way("zero3", SMALL | {"zero_init": False}, "Zero", STAGE_3, zero("DeepSpeedZeroOptimizer_Stage3")),
]


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    """A group of this process alone, over gloo."""
    import deepspeed

    with pytest.MonkeyPatch.context() as patch:
        kind = type(import_module("deepspeed.accelerator").get_accelerator())
        patch.setattr(kind, "is_fp16_supported", lambda _self: True)  # torch computes in it on any CPU
        patch.setattr(kind, "supported_dtypes", lambda _self: [torch.float, torch.bfloat16, torch.half])
        comm = import_module("deepspeed.comm.torch")
        patch.setattr(comm, "build_shm_op", lambda: None)  # no part of training, and would have to be compiled
        for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": free_port()}.items():
            patch.setenv(name, str(value))
        patch.setenv("MASTER_ADDR", "127.0.0.1")
        patch.setattr(torch.nn.functional, "linear", torch.nn.functional.linear)  # stage 3 replaces it for good
        torch.distributed.init_process_group("gloo")
        deepspeed.init_distributed("gloo")
        yield
        torch.distributed.destroy_process_group()


def unheard(_kind: str, _ranks: int, _nbytes: int) -> None:
    """Nobody counts."""


def made(
    strategy: str,
    seed: int = 1,
    heard: Callable[[str, int, int], None] = unheard,
    *,
    tied: bool = False,
    clipping: float = CLIPPING,
    **fields: Any,
) -> Any:
    asked = {"precision": "fp32", "gradient_accumulation_steps": 3, "micro_batch_size": 2, "sequence_length": 16}
    asked |= {"hyperparameters": {"gradient_clipping": clipping, **ADAM}, **fields}
    model = ModelSpec(name="tiny", hf_config=CONFIG | {"tie_word_embeddings": tied})
    trial = TrialSpec.model_validate({"model": model, "strategy": strategy, **asked})
    keys = build_ds_config(trial) if uses_deepspeed(trial) else {}
    found = make_strategy(job_of(trial, seed, ds_config=keys, heard=heard, norms=GradNorms(clipping)))
    found.build()
    return found


class Heard(PlainPhases):
    """The first letters of the phases in their order, `L` where the loss is told."""

    def __init__(self) -> None:
        super().__init__(Marks())
        self.said = ""

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        self.said += phase.value[0]
        with super().phase(phase):
            yield

    def mark_loss(self, loss: torch.Tensor) -> None:
        assert loss.ndim == 0
        self.said += "L"


Taken = tuple[list[float], str, list[float]]


def stepped(ours: Strategy, begin: int = 0, steps: int = 2, each: int = 3) -> Taken:
    """The losses, the phases and the norms of some steps of `each` micro-batches."""
    losses, heard = [], Heard()
    for number in range(begin, begin + steps):
        ours.job.norms.begin("memory")
        losses.append(float(ours.step(batches(number, each), RATES[number % 2], heard)))
    return losses, heard.said, [float(norm or 0) for norm in ours.job.norms.values()]


@cache
def plain(precision: str) -> Taken:
    return stepped(made("single", precision=precision), steps=4)


def held(strategy: Strategy) -> Bytes:
    """Bytes by category, of each storage once; what is offloaded apart."""
    found: dict[int, tuple[str, int]] = {}
    for one in strategy.walk():
        tensor: Any = one.tensor
        storage = (tensor.to_local() if hasattr(tensor, "to_local") else tensor).untyped_storage()
        where = " on the host" if one.place is Place.HOST else ""
        found.setdefault(storage.data_ptr(), (one.category.value + where, storage.nbytes()))
    counted = Counter[str]()
    for category, nbytes in found.values():
        counted[category] += nbytes
    return {category: nbytes for category, nbytes in counted.items() if nbytes}


def name_of(way: Way) -> str:
    return " ".join([way.strategy, *(str(value) for value in way.fields.values() if not isinstance(value, dict))])


@pytest.mark.parametrize("way", WAYS, ids=name_of)
def test_a_strategy_alone_takes_the_plain_steps_holds_what_it_names_and_goes_on_from_its_file(
    way: Way, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if way.fields.get("optimizer"):
        request.getfixturevalue("kernels")
    precision = way.fields.get("precision", "fp32")
    losses, _, norms = plain(precision)
    apart = 1e-6 if precision == "fp32" else 3e-5
    ours = made(way.strategy, **way.fields)
    assert type(ours).__name__ == way.kind
    found, heard, told = stepped(ours)
    assert found == pytest.approx(losses[:2], rel=apart)
    assert told == pytest.approx(norms[:2], rel=10 * apart)
    assert heard == 2 * way.phases
    is_compressed = "compression" in way.fields
    if not is_compressed:  # what a hook left out is in no file
        ours.save(tmp_path)
        assert not (tmp_path / "latest").exists()  # of DeepSpeed: who reads it names what it reads
    found, heard, _ = stepped(ours, begin=2)
    assert heard == 2 * way.phases
    assert found == pytest.approx(losses[2:], rel=2e-3 if is_compressed else 2 * apart)
    assert ours.learning_rate() == RATES[-1]
    assert held(ours) == way.holds
    said = ours.effective_config()
    assert {key: said[key] for key in way.says} == way.says
    if not is_compressed:
        other = made(way.strategy, seed=2, **way.fields)
        other.load(tmp_path)
        assert stepped(other, begin=2)[0] == found


@pytest.mark.parametrize(
    ("strategy", "fields", "is_free"),
    [("ddp", {}, False), ("zero0", {}, False), ("zero2", SMALL, True), ("pipeline", DEEPSPEED, False)],
)
def test_without_clipping_norms_are_told_by_whom_they_cost_nothing_and_else_in_warm_up_steps(
    strategy: str, fields: Fields, *, is_free: bool
) -> None:
    told, notes = unclipped(strategy, **fields)
    reference, _ = unclipped("single")
    known = range(len(KINDS)) if is_free else [1, 3]
    assert [index for index, norm in enumerate(told) if norm is not None] == [*known]
    for index in (1, 3):
        assert told[index] == pytest.approx(reference[index], rel=1e-5)
    assert any("warm-up steps only" in note for note in notes) != is_free


KINDS = ("first", "warmup", "memory", "warmup", "timed")


def unclipped(strategy: str, **fields: Any) -> tuple[list[float | None], list[str]]:
    """The norms that a strategy tells of steps of `KINDS`, and what its reader must know of them."""
    ours = made(strategy, clipping=0.0, **fields)
    for number, kind in enumerate(KINDS):
        ours.job.norms.begin(kind)
        ours.step(batches(number), RATES[0], PlainPhases(Marks()))
    return ours.job.norms.values(), ours.job.norms.notes()


@pytest.mark.parametrize("clip", [clip_cut_gradients, lambda all_, largest: clip_over_stages(all_, all_, largest)])
def test_gradients_are_scaled_down_to_the_largest_norm_and_never_up(clip: Callable[..., torch.Tensor]) -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    for largest, left in ((10.0, [3.0, 4.0]), (2.5, [1.5, 2.0])):
        parameter.grad = torch.tensor([3.0, 4.0])
        assert float(clip([parameter], largest)) == 5
        assert parameter.grad.tolist() == pytest.approx(left)
