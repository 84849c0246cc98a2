"""An operation that is remembered gives what torch's own FakeTensorMode gives: looks, storage and aliasing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 -- torch's own habit

from tests.tools.at_least_one import at_least_one

GPU = "simgpu"

Tensors = list[Any]


def wide(device: str = GPU) -> Tensors:
    return [torch.empty(6, 8, dtype=torch.bfloat16, device=device)]


def strided() -> Tensors:
    """A column of a larger tensor, transposed: neither contiguous nor at its storage's start."""
    return [torch.empty(10, 8, device=GPU)[2:8, 1:5].t()]


def several() -> Tensors:
    return [torch.empty(n, 3, device=GPU) for n in (4, 5, 6)]


def matrices() -> Tensors:
    return [torch.empty(4, 6, device=GPU), torch.empty(6, 5, device=GPU), torch.empty(5, device=GPU)]


def tokens() -> Tensors:
    return [torch.empty(2, 7, dtype=torch.int64, device=GPU), torch.empty(11, 4, dtype=torch.bfloat16, device=GPU)]


def flat_and_parts() -> Tensors:
    """A flat buffer and two views of it, as DeepSpeed flattens parameters."""
    flat = torch.empty(24, dtype=torch.bfloat16, device=GPU)
    return [flat, flat.narrow(0, 0, 12).view(3, 4), flat.narrow(0, 12, 12)]


def counts() -> Tensors:
    return [torch.empty(5, dtype=torch.int64, device=GPU)]


def complex_numbers() -> Tensors:
    return [torch.empty(4, 3, dtype=torch.complex64, device=GPU)]


aten = torch.ops.aten

OPERATIONS: dict[str, tuple[Callable[[], Tensors], Callable[..., Any]]] = {
    "view": (wide, lambda x: x.view(2, 24)),
    "unsafe_view": (wide, lambda x: aten._unsafe_view(x, [48])),
    "reshape that must copy": (strided, lambda x: x.reshape(-1)),
    "transpose": (wide, lambda x: x.t()),
    "expand": (wide, lambda x: x.unsqueeze(0).expand(5, -1, -1)),
    "as_strided": (wide, lambda x: x.as_strided((3, 2), (16, 1), 5)),
    "slice": (wide, lambda x: x[1:5:2]),
    "narrow": (strided, lambda x: x.narrow(0, 1, 2)),
    "select": (wide, lambda x: x[3]),
    "split, a list of views": (wide, lambda x: x.split(4)),
    "chunk, a list of views": (wide, lambda x: x.chunk(3, dim=1)),
    "unbind, a list of views": (wide, lambda x: x.unbind(0)),
    "detach": (strided, lambda x: x.detach()),
    "view as a smaller type": (wide, lambda x: x.view(torch.uint8)),
    "view as a larger type": (wide, lambda x: x.view(torch.float32)),
    "an empty view": (wide, lambda x: x[:0]),
    "the argument itself": (wide, lambda x: x.contiguous()),
    "contiguous that must copy": (strided, lambda x: x.contiguous()),
    "clone keeps strides": (wide, lambda x: x.t().clone()),
    "to another type": (strided, lambda x: x.to(torch.bfloat16)),
    "to the type that it has": (wide, lambda x: x.to(torch.bfloat16)),
    "to the host": (wide, lambda x: x.to("cpu")),
    "from the host": (lambda: wide("cpu"), lambda x: x.to(GPU)),
    "in place": (wide, lambda x: x.add_(1)),
    "in place, two": (lambda: wide() + wide(), lambda x, y: x.mul_(y)),
    "copy_ between views of one buffer": (flat_and_parts, lambda _, x, y: y.copy_(x.view(-1))),
    "copy_ between devices": (lambda: wide() + wide("cpu"), lambda x, y: x.copy_(y)),
    "in place, shape changed": (wide, lambda x: x.unsqueeze_(0)),
    "in place, size changed": (wide, lambda x: x.resize_(3, 5)),
    "set_ to another's storage": (flat_and_parts, lambda _, x, y: x.set_(y)),
    "foreach": (several, lambda *x: torch._foreach_add(x, 1.0)),
    "foreach in place": (several, lambda *x: torch._foreach_mul_(x, 2.0)),
    "foreach norm": (several, lambda *x: torch._foreach_norm(x)),
    "foreach of two lists": (several, lambda *x: torch._foreach_mul(x, x)),
    "cat": (several, lambda *x: torch.cat(x)),
    "cat of one": (wide, lambda x: torch.cat([x])),
    "cat into a view": (flat_and_parts, lambda flat, *_: torch.cat([flat[:3], flat[3:5]], out=flat.narrow(0, 7, 5))),
    "stack": (wide, lambda x: torch.stack([x, x])),
    "mm": (matrices, lambda a, b, _: a @ b),
    "mm of a transposed": (matrices, lambda a, b, _: b.t() @ a.t()),
    "addmm": (matrices, lambda a, b, bias: torch.addmm(bias, a, b)),
    "linear of three dimensions": (matrices, lambda a, b, bias: F.linear(a.expand(3, 4, 6), b.t(), bias)),
    "bmm": (matrices, lambda a, b, _: torch.bmm(a.expand(3, 4, 6), b.expand(3, 6, 5))),
    "embedding": (tokens, F.embedding),
    "softmax": (wide, lambda x: F.softmax(x, dim=-1, dtype=torch.float32)),
    "layer_norm, a tuple": (wide, lambda x: aten.native_layer_norm(x, [8], None, None, 1e-5)),
    "max, a named tuple": (wide, lambda x: x.max(dim=1)),
    "cross_entropy": (matrices, lambda a, *_: F.cross_entropy(a, torch.empty(4, dtype=torch.int64, device=GPU))),
    "gather": (tokens, lambda ids, weight: weight.gather(0, ids[:, :4])),
    "index": (tokens, lambda ids, weight: weight[ids]),
    "where": (wide, lambda x: torch.where(x > 0, x, 0.0)),
    "sum": (wide, lambda x: x.sum(dtype=torch.float32)),
    "norm": (several, lambda x, *_: x.norm(2)),
    "empty_like": (strided, torch.empty_like),
    "new_empty on the host": (wide, lambda x: x.new_empty((3,), device="cpu")),
    "zeros": (list, lambda: torch.zeros(3, 4, dtype=torch.bfloat16, device=GPU)),
    "arange": (list, lambda: torch.arange(7, device=GPU)),
    "a whole number added": (counts, lambda x: x + 1),
    "a real number added": (counts, lambda x: x + 1.0),
    "a truth value added": (counts, lambda x: x + True),
    "conjugate": (complex_numbers, lambda z: z.conj()),
    "conjugate of a slice": (complex_numbers, lambda z: z[1:].conj()),
    "complex seen as real": (complex_numbers, torch.view_as_real),
    "overlapping results": (wide, lambda x: (x, x[1:], x.t())),
}


def flat(value: Any) -> list[Any]:
    return [leaf for item in value for leaf in flat(item)] if isinstance(value, (list, tuple)) else [value]


def looks(arguments: Tensors, result: Any) -> list[Any]:
    """Everything that can be told of arguments and results, with who shares whose storage and who is who."""
    tensors = arguments + flat(result)
    storages = [t.untyped_storage()._cdata for t in tensors]
    names = [id(t) for t in tensors]
    return [
        type(result).__name__,
        *(
            (
                tuple(t.shape),
                t.stride(),
                t.storage_offset(),
                str(t.dtype),
                str(t.device),
                t.untyped_storage().nbytes(),
                t.is_conj(),
                storages.index(storage),
                names.index(id(t)),
            )
            for t, storage in zip(tensors, storages, strict=True)
        ),
    ]


def perform(mode: Any, operation: str) -> list[Any]:
    make, act = OPERATIONS[operation]
    with mode, torch.no_grad():
        arguments = make()
        return looks(arguments, act(*arguments))


def compare() -> dict[str, tuple[Any, list[Any]]]:
    """For each operation what FakeTensorMode gives, and what the simulation gives three times."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from zerobench.rank.worlds.simulation.tensors import SimulatedTensors

    simulated = SimulatedTensors(lambda _flops: None)
    return {
        name: (perform(FakeTensorMode(allow_non_fake_inputs=True), name), [perform(simulated, name) for _ in range(3)])
        for name in OPERATIONS
    }


@pytest.fixture(scope="module")
def compared(in_fork):
    return in_fork(compare)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_remembered_result_looks_as_torch_makes_it_on_the_first_and_on_later_calls(compared, operation):
    torchs, ours = compared[operation]
    assert ours == [torchs] * 3


REPEATED = (
    "view",
    "unsafe_view",
    "split, a list of views",
    "foreach",
    "mm",
    "cat",
    "view as a larger type",
    "layer_norm, a tuple",
    "max, a named tuple",
)


def count_work() -> dict[str, list[int]]:
    """Number of operations that torch itself computed in each of three runs."""
    from zerobench.rank.worlds.simulation.tensors import SimulatedTensors

    class Counting(SimulatedTensors):
        worked_out = 0

        def _work_out(self, *arguments: Any) -> Any:
            self.worked_out += 1
            return super()._work_out(*arguments)

    work: dict[str, list[int]] = {}
    for name in REPEATED:
        mode = Counting(lambda _flops: None)
        work[name] = []
        for _ in range(3):
            before = mode.worked_out
            perform(mode, name)
            work[name].append(mode.worked_out - before)
    with Counting(lambda _flops: None) as mode:
        flat, work["parts of one buffer"] = torch.empty(24, device=GPU), []
        for offset in (0, 8, 16):
            before = mode.worked_out
            _ = flat.narrow(0, offset, 8).add(1).split(4)
            work["parts of one buffer"].append(mode.worked_out - before)
    return work


def test_an_equal_operation_is_not_worked_out_again(in_fork):
    for operation, (first, *later) in at_least_one(in_fork(count_work).items()):
        assert first > 0, operation
        assert later == [0, 0], operation


def change_one_thing() -> dict[str, tuple[Any, Any]]:
    """Pairs of calls that differ in one thing: what torch gives for the second, and the simulation after the first."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from zerobench.rank.worlds.simulation.tensors import SimulatedTensors

    def ints() -> Any:
        return torch.empty(5, dtype=torch.int64, device=GPU)

    def later(offset: int) -> Any:
        return torch.empty(9, device=GPU).narrow(0, offset, 4)

    pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "1 and 1.0": (lambda: ints() + 1, lambda: ints() + 1.0),
        "1 and True": (lambda: ints().sum(dim=1 - 1), lambda: (ints() > 0) + True),
        "shape": (lambda: torch.empty(6, device=GPU) + 1, lambda: torch.empty(7, device=GPU) + 1),
        "strides": (
            lambda: torch.empty_like(torch.empty(4, 4, device=GPU)),
            lambda: torch.empty_like(torch.empty(4, 4, device=GPU).t()),
        ),
        "offset": (
            lambda: later(0)[1:],
            lambda: later(5)[1:],
        ),
        "offset, beside a given one": (
            lambda: later(0).as_strided((2,), (1,), 3),
            lambda: later(4).as_strided((2,), (1,), 3),
        ),
        "offset, in another type": (lambda: later(0).view(torch.uint8), lambda: later(4).view(torch.uint8)),
        "type": (lambda: torch.empty(4, dtype=torch.int32, device=GPU).sum(), lambda: torch.empty(4, device=GPU).sum()),
        "device": (lambda: torch.empty(4, device=GPU) + 1, lambda: torch.empty(4) + 1),
        "name of an option": (
            lambda: torch.empty(4, 4, device=GPU).sum(0, keepdim=True),
            lambda: torch.empty(4, 4, device=GPU).sum(0, keepdim=False),
        ),
        "how lists are divided": (
            lambda: torch.cat([torch.empty(3, device=GPU), torch.empty(3, device=GPU)]),
            lambda: torch.cat([torch.empty(3, device=GPU)]),
        ),
        "default type": (lambda: torch.ones(3, device=GPU), lambda: in_doubles(lambda: torch.ones(3, device=GPU))),
    }
    found = {}
    for name, (first, second) in pairs.items():
        with FakeTensorMode(allow_non_fake_inputs=True):
            torchs = looks([], second())
        with SimulatedTensors(lambda _flops: None):
            first()
            found[name] = (torchs, looks([], second()))
    return found


def in_doubles(make: Callable[[], Any]) -> Any:
    torch.set_default_dtype(torch.float64)
    try:
        return make()
    finally:
        torch.set_default_dtype(torch.float32)


def test_operations_that_differ_in_one_thing_are_not_taken_for_each_other(in_fork):
    for what, (torchs, ours) in at_least_one(in_fork(change_one_thing).items()):
        assert ours == torchs, what


def use_values() -> dict[str, list[float]]:
    """Scalars with values, the same operations on them twice over."""
    from zerobench.rank.worlds.simulation.tensors import SimulatedTensors

    mode = SimulatedTensors(lambda _flops: None)
    with mode:
        made = [torch.tensor(value).item() for value in (2.0, 3.0, 4.0)]
        sums = [(torch.tensor(value) + 1).item() for value in (2.0, 3.0, 4.0)]
        remembered = len(mode._memo)
        counter = torch.tensor(0.0)
        counted = []
        for _ in range(3):
            counter += 1
            counted.append(counter.item())
        return {"made": made, "sums": sums, "counted": counted, "remembered": [remembered, len(mode._memo)]}


def test_a_tensor_with_a_value_is_never_remembered(in_fork):
    seen = in_fork(use_values)
    assert seen["made"] == [2.0, 3.0, 4.0]
    assert seen["sums"] == [3.0, 4.0, 5.0]
    assert seen["counted"] == [1.0, 2.0, 3.0]
    assert seen["remembered"] == [0, 0]
