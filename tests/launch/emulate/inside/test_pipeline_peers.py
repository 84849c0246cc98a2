"""What comes to a stage of a pipeline whose other stages are not there."""

import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from zerobench.launch.emulate.inside.pipeline_peers import StagesBefore, put_back


class Block(nn.Module):
    """As a transformer's, with a mask that is passed on."""

    def __init__(self, width, out):
        super().__init__()
        self.linear = nn.Linear(width, out)

    def forward(self, given):
        hidden, mask = given
        return self.linear(hidden) * mask.unsqueeze(-1), mask


def layers():
    from deepspeed.pipe import LayerSpec, TiedLayerSpec

    def embed(module, given):
        tokens, mask = given
        return module(tokens), mask

    return [
        TiedLayerSpec("embed", nn.Embedding, 100, 8, forward_fn=embed),
        LayerSpec(Block, 8, 24),
        lambda given: (given[0][:, 1:], given[1][:, 1:]),
        Block(24, 16),
        LayerSpec(Block, 16, 8),
        TiedLayerSpec("embed", nn.Embedding, 100, 8, forward_fn=lambda module, given: given[0] @ module.weight.t()),
    ]


class Engine:
    """What is asked of DeepSpeed's: a stage that begins at one of the layers, and its buffers."""

    has_attention_mask = True
    has_bool_tensors = False
    is_pipe_partitioned = False
    batch_fn = None
    training_dataloader = None
    _recv_tensor_meta: Any = None
    set_dataiterator: Any = None

    def __init__(self, start, batches=None, *, last=False):
        self.module = SimpleNamespace(_layer_specs=layers(), _local_start=start)
        self.data_iterator: Any = None if batches is None or not last else iter(batches)
        self._last = last

    def is_first_stage(self):
        return False

    def is_last_stage(self):
        return self._last

    def bfloat16_enabled(self):
        return True

    def fp16_enabled(self):
        return False

    def _allocate_or_extend_buffers(self, index, shape, dtype):
        return index, tuple(shape), dtype


def batch(rows=2):
    return (torch.zeros(rows, 11, dtype=torch.long), torch.ones(rows, 11, dtype=torch.bool)), torch.zeros(rows, 10)


def test_a_stage_gets_what_the_layers_before_it_make_of_a_batch_in_the_engines_type_and_the_mask_as_it_is_sent():
    engine = Engine(4, [batch()], last=True)
    StagesBefore(engine).install()
    assert engine._recv_tensor_meta(0) == ((0, (2, 10, 16), torch.bfloat16), (1, (2, 10), torch.float16))
    engine = Engine(2, [batch(3)], last=True)
    StagesBefore(engine).install()
    assert engine._recv_tensor_meta(0)[0] == (0, (3, 11, 24), torch.bfloat16)


def test_the_batch_that_was_looked_at_is_still_to_come():
    batches = [batch(2), batch(3)]
    engine = Engine(4, batches, last=True)
    StagesBefore(engine).install()
    engine._recv_tensor_meta(0)
    assert list(engine.data_iterator) == batches


def test_a_middle_stage_looks_at_the_batches_that_the_script_gives_it_in_vain():
    engine = Engine(4)
    StagesBefore(engine).install()
    engine.set_dataiterator(iter([batch(5)]))
    assert engine._recv_tensor_meta(0)[0] == (0, (5, 10, 16), torch.bfloat16)
    assert engine.data_iterator is None


def test_the_layers_before_are_built_without_memory_and_the_scripts_own_stay_where_they_are():
    engine = Engine(4, [batch()], last=True)
    own = engine.module._layer_specs[3]
    StagesBefore(engine).install()
    engine._recv_tensor_meta(0)
    assert own.linear.weight.device.type == "cpu"
    assert own.linear.weight.dtype == torch.float32


def test_a_middle_stage_without_batches_is_told_which_ranks_can_be_played():
    engine = Engine(4)
    StagesBefore(engine).install()
    with pytest.raises(RuntimeError, match="--ranks 0,last"):
        engine._recv_tensor_meta(0)


def test_a_batch_that_was_looked_at_is_kept_by_nobody_once_it_is_handed_out():
    first = torch.ones(4)
    reference = weakref.ref(first)
    batches = put_back(first, iter(["second"]))
    del first
    assert torch.equal(next(batches), torch.ones(4))
    assert reference() is None
    assert list(batches) == ["second"]
