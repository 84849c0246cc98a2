"""The simulated world tells device and host apart and counts what allocators and libraries take beside tensors."""

from typing import Any

import pytest

from zerobench.config.hardware.hardware import find_gpu
from zerobench.config.hardware.overheads import overhead_of, workspace_of
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import PredictionSpec, TrialSpec

GPU = "simgpu"
NAMED = "A100 SXM 80GB"

Rows = dict[tuple[str, str, str], int]


def trial(gpu: str | None, **fields: Any) -> TrialSpec:
    model = ModelSpec(name="m", hf_config={"model_type": "gpt2"})
    work = {"strategy": "zero2", "gpus_per_node": 8, "evidence": "simulated", "prediction": PredictionSpec(gpu=gpu)}
    return TrialSpec.model_validate({"model": model, **work, **fields})


class Opened:
    """A simulated world with a ledger, as a rank sets it up."""

    def __init__(self, gpu: str | None, **fields: Any) -> None:
        import itertools

        from zerobench.rank.ledger.ledger import Ledger
        from zerobench.rank.loop.launched import one_of
        from zerobench.rank.worlds import make_world

        spec = trial(gpu, **fields)
        self.rank = one_of(spec)
        self.world: Any = make_world(spec)
        self.device = self.world.open_device(self.rank)
        self.named: list[Any] = []
        self.ledger = Ledger(
            self.device.torch_device,
            lambda: itertools.chain(self.named, self.world.walk()),
            self.world.counter,
            in_own_process=self.world.trains,
            device_totals=self.world.device_totals,
        )
        self.rows: Any = self.world.device_rows(self.device, None)

    def phase(self, name: str = "forward") -> Any:
        from zerobench.common.vocabulary import Phase, StepKind

        return self.ledger.phase(StepKind.FIRST, Phase(name))

    def live(self) -> Rows:
        return {(r.phase.value, r.place.value, r.category.value): r.live_bytes for r in self.ledger.rows()}


def put_tensors_on_both() -> Rows:
    import torch

    from zerobench.common.vocabulary import Category, Place
    from zerobench.rank.ledger.engine_tensors import NamedTensor

    opened = Opened(NAMED)
    with opened.world.active(), opened.ledger.tracking(), opened.phase():
        weights, states = torch.empty(1024, device=opened.device.torch_device), torch.empty(3000)
        opened.named = [
            NamedTensor(weights, Category.PARAMETERS),
            NamedTensor(states, Category.MASTER_WEIGHTS, Place.HOST),
        ]
    return opened.live()


def test_device_and_host_are_told_apart_by_the_tensors_themselves(in_fork):
    live = in_fork(put_tensors_on_both)
    assert live["forward", "device", "parameters"] == 4096
    assert live["forward", "device", "total"] == 4096
    assert live["forward", "host", "master_weights"] == 12000
    assert live["forward", "host", "total"] == 12000
    assert ("forward", "host", "rest_of_process") not in live  # this process is not the trial's


def lock_pages() -> tuple[Rows, Rows]:
    import torch
    from deepspeed.accelerator import get_accelerator

    from zerobench.common.vocabulary import Category, Place
    from zerobench.rank.ledger.engine_tensors import NamedTensor

    opened = Opened(NAMED)
    with opened.world.active(), opened.ledger.tracking():
        with opened.phase("forward"):
            pinned = get_accelerator().pin_memory(torch.empty(1000))
            plain = torch.empty(1000)
            exact = get_accelerator().pin_memory(torch.empty(1024))
            opened.named = [NamedTensor(t, Category.MASTER_WEIGHTS, Place.HOST) for t in (pinned, plain, exact)]
        with opened.phase("backward"):
            opened.named = []
            del pinned
    del plain, exact
    return opened.live(), {}


def test_page_locked_memory_counts_in_powers_of_two_and_other_host_memory_as_it_is(in_fork):
    live, _ = in_fork(lock_pages)
    assert live["forward", "host", "master_weights"] == 4000 + 4000 + 4096
    assert live["forward", "host", "allocator_rounding"] == 96
    assert live["forward", "host", "total"] == 4096 + 4000 + 4096
    assert live["backward", "host", "allocator_rounding"] == 0  # gone with the tensor
    assert live["backward", "host", "total"] == 4000 + 4096


def round_blocks() -> tuple[Rows, list[Any]]:
    import torch

    from zerobench.common.vocabulary import Category, Phase, StepKind
    from zerobench.rank.ledger.engine_tensors import NamedTensor

    opened = Opened(NAMED)
    with opened.world.active(), opened.ledger.tracking():
        opened.rows.start()
        with opened.phase():
            tensors = [torch.empty(n, dtype=torch.uint8, device=GPU) for n in (1, 512, 513)]
            del tensors[0]
            opened.named = [NamedTensor(t, Category.PARAMETERS) for t in tensors]
        opened.rows.note(StepKind.FIRST, Phase.FORWARD)
    [row] = opened.rows.rows.values()
    figures = [row.allocated_bytes, row.peak_allocated_bytes, row.reserved_bytes, row.peak_reserved_bytes]
    return opened.live(), figures


def test_device_memory_counts_in_blocks_of_512_bytes_and_is_reserved_in_segments(in_fork):
    live, figures = in_fork(round_blocks)
    assert live["forward", "device", "parameters"] == 1025
    assert live["forward", "device", "allocator_rounding"] == 511
    assert live["forward", "device", "total"] == 1536
    assert figures == [1536, 2048, 2 * 2**20, 2 * 2**20]


def multiply() -> dict[str, Any]:
    import torch

    opened = Opened(NAMED)
    seen: dict[str, Any] = {}
    with opened.world.active(), opened.ledger.tracking():
        with opened.phase("init"):
            left = torch.nn.Parameter(torch.empty(8, 8, device=GPU))
            torch.empty(4, 4) @ torch.empty(4, 4)  # on the host: no workspace
        with opened.phase("forward"):
            loss = ((left @ left) @ left).sum()
        with opened.phase("backward"):
            loss.backward()
        with opened.phase("step"):
            torch.empty(8, 8, device=GPU) @ left.detach()
    live = opened.live()
    for phase in ("init", "forward", "backward", "step"):
        seen[phase] = live.get((phase, "device", "workspaces"), 0)
    return seen


def test_the_matrix_librarys_workspace_is_taken_once_forward_and_once_backward(in_fork):
    one = workspace_of(NAMED).workspace_bytes
    assert one > 0
    assert in_fork(multiply) == {"init": 0, "forward": one, "backward": 2 * one, "step": 2 * one}


def fill() -> list[int]:
    import torch
    from deepspeed.accelerator import get_accelerator

    opened = Opened(NAMED)
    accelerator = get_accelerator()
    with opened.world.active(), opened.ledger.tracking(), opened.phase():
        seen = [accelerator.total_memory(), accelerator.available_memory()]
        taken = torch.empty(10 * 2**30, dtype=torch.uint8, device=GPU)
        on_host = torch.empty(2**30, dtype=torch.uint8)
        seen.append(accelerator.available_memory())
        taken = taken[:1].clone()
        seen.append(accelerator.available_memory())
        del taken, on_host
        seen.append(accelerator.available_memory())
    return seen


def test_available_memory_follows_what_is_allocated_on_the_device(in_fork):
    known = find_gpu(NAMED)
    assert known is not None
    capacity = known.capacity_bytes
    assert capacity is not None
    assert in_fork(fill) == [capacity, capacity, capacity - 10 * 2**30, capacity - 1, capacity]


def describe_gpu(gpu: str | None) -> dict[str, Any]:
    opened = Opened(gpu)
    context, sources = opened.world.context_memory()
    return {
        "device": [opened.device.torch_device.type, opened.device.name],
        "context": None if context is None else [context.context_bytes, context.collectives_bytes],
        "sources": sources,
        "reader": opened.world.reader(opened.device),
        "has_rows": opened.rows is not None,
    }


def test_context_and_collectives_come_from_the_table_with_their_source(in_fork):
    overhead = overhead_of(NAMED, 8)
    seen = in_fork(describe_gpu, NAMED)
    assert seen["device"] == [GPU, NAMED]
    assert seen["context"] == [overhead.context_bytes, overhead.collectives_bytes]
    assert seen["sources"] == [overhead.source]
    assert seen["reader"] is None
    assert seen["has_rows"]


def test_the_ranks_of_a_cpu_run_have_no_context_and_no_allocator(in_fork):
    seen = in_fork(describe_gpu, None)
    assert seen["device"] == ["cpu", "cpu"]
    assert (seen["context"], seen["sources"], seen["has_rows"]) == (None, [], False)


def draw_batches() -> list[Any]:
    opened = Opened(NAMED, micro_batch_size=3, sequence_length=7)
    with opened.world.active():
        batches = opened.world.micro_batches(opened.rank, 100)
        first, second = next(batches), next(batches)
        return [list(first.shape), str(first.dtype), first.device.type, first is second, opened.world.trains]


def test_batches_have_the_shape_of_tokens_and_no_values(in_fork):
    assert in_fork(draw_batches) == [[3, 7], "torch.int64", "cpu", False, False]


def name_an_unknown_gpu() -> str:
    with pytest.raises(RuntimeError) as error:
        _ = Opened("A100 SXM 80TB").world.capacity_bytes
    return str(error.value)


def test_a_gpu_that_the_catalogue_does_not_know_is_refused_by_name(in_fork):
    assert "prediction.gpu" in in_fork(name_an_unknown_gpu)


def choose_attention() -> list[str]:
    return [Opened(NAMED, attention=name).world.attention.value for name in ("sdpa", "eager", "flash_attention_2")]


def test_flash_attention_is_simulated_as_torchs_own_flash_kernel(in_fork):
    assert in_fork(choose_attention) == ["sdpa", "eager", "sdpa"]
