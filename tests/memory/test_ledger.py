"""Every byte of a training step has a name by evidence, and what has none is said to have none."""

from __future__ import annotations

import gc

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from zerobench.memory.engine_tensors import walk_module, walk_optimizer_states
from zerobench.memory.ledger import Ledger
from zerobench.records import Category, Phase, Place, StepKind
from zerobench.worker.model import enable_checkpointing

TOKENS = torch.randint(0, 512, (2, 64))
CPU = torch.device("cpu")


class Trained:
    """A small Llama and its AdamW, trained under a ledger."""

    def __init__(self, *, checkpointing=False):
        shape = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 256}
        config = LlamaConfig(**shape, num_key_value_heads=4, vocab_size=512, use_cache=False)
        self.model = LlamaForCausalLM(config)
        if checkpointing:
            enable_checkpointing(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.ledger = Ledger(CPU, self.walk)
        self.kept = []

    def walk(self):
        yield from walk_module(self.model)
        yield from walk_optimizer_states(self.optimizer)

    def train(self, step, *, during_forward=lambda: None):
        ledger = self.ledger
        with ledger.tracking(self.model):
            ledger.name_inputs([TOKENS])
            with ledger.phase(step, Phase.FORWARD):
                loss = self.model(input_ids=TOKENS, labels=TOKENS).loss
                ledger.mark_loss(loss)
                during_forward()
            with ledger.phase(step, Phase.BACKWARD):
                loss.backward()
                del loss
            with ledger.phase(step, Phase.STEP):
                self.optimizer.step()
                self.optimizer.zero_grad()

    def row(self, phase, category, step=StepKind.STEADY, place=Place.DEVICE):
        rows = [
            r for r in self.ledger.rows() if (r.step, r.phase, r.place, r.category) == (step, phase, place, category)
        ]
        return rows[0]

    @property
    def parameter_bytes(self):
        return sum(p.numel() * 4 for p in self.model.parameters())


@pytest.fixture(scope="module")
def trained():
    gc.collect()  # models that earlier tests left in reference cycles are memory of this process, and nobody's here
    result = Trained()
    result.train(StepKind.FIRST)
    result.train(StepKind.STEADY)
    return result


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.BACKWARD, Phase.STEP])
def test_states_are_counted_to_the_byte(trained, phase):
    for category in (Category.PARAMETERS, Category.FIRST_MOMENT, Category.SECOND_MOMENT):
        assert trained.row(phase, category).live_bytes == trained.parameter_bytes


def test_gradients_stand_at_the_end_of_the_backward_pass_and_are_gone_after_the_step(trained):
    assert trained.row(Phase.BACKWARD, Category.GRADIENTS).live_bytes == trained.parameter_bytes
    assert trained.row(Phase.STEP, Category.GRADIENTS).live_bytes == 0


def test_the_moments_appear_at_the_first_step(trained):
    forward = [r.category for r in trained.ledger.rows() if r.step is StepKind.FIRST and r.phase is Phase.FORWARD]
    assert Category.FIRST_MOMENT not in forward
    assert trained.row(Phase.STEP, Category.FIRST_MOMENT, StepKind.FIRST).live_bytes == trained.parameter_bytes


def test_activations_live_from_forward_to_backward(trained):
    assert trained.row(Phase.FORWARD, Category.ACTIVATIONS).live_bytes > 0
    assert trained.row(Phase.BACKWARD, Category.ACTIVATIONS).live_bytes == 0
    logits_bytes = TOKENS.numel() * 512 * 4
    assert trained.row(Phase.FORWARD, Category.LOGITS_AND_LOSS).own_peak_bytes >= 2 * logits_bytes


def test_the_categories_sum_to_the_total_in_every_phase_and_place(trained):
    rows = trained.ledger.rows()
    for total in [r for r in rows if r.category is Category.TOTAL]:
        parts = [
            r for r in rows if (r.step, r.phase, r.place) == (total.step, total.phase, total.place) and r is not total
        ]
        assert sum(r.live_bytes for r in parts) == total.live_bytes
        assert sum(r.at_peak_bytes for r in parts) == total.at_peak_bytes


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.BACKWARD, Phase.STEP])
def test_less_than_one_percent_of_the_peak_has_no_name(trained, phase):
    peak = trained.row(phase, Category.TOTAL).at_peak_bytes
    assert abs(trained.row(phase, Category.UNATTRIBUTED).at_peak_bytes) <= 0.01 * peak


def test_fifty_megabytes_that_nobody_names_appear_as_unattributed():
    run = Trained()
    run.train(StepKind.FIRST)
    run.train(StepKind.STEADY, during_forward=lambda: run.kept.append(torch.zeros(12_500_000)))
    # Other tests' models are alive in this process and nameless too, so the difference is looked at.
    for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.STEP):
        before = run.row(phase, Category.UNATTRIBUTED, StepKind.FIRST).live_bytes
        planted = run.row(phase, Category.UNATTRIBUTED).live_bytes - before
        assert 50_000_000 <= planted < 50_001_000


def test_a_tensor_that_the_model_leaks_loses_its_name_after_the_step():
    run = Trained()
    handle = run.model.model.layers[0].register_forward_hook(lambda _m, _i, out: run.kept.append(out.detach() * 1))
    run.train(StepKind.STEADY)
    handle.remove()
    leaked_bytes = TOKENS.numel() * 128 * 4
    assert run.row(Phase.STEP, Category.UNATTRIBUTED).live_bytes >= leaked_bytes


def test_checkpointing_keeps_fewer_activations_and_names_the_recomputed_ones():
    plain, checkpointed = Trained(), Trained(checkpointing=True)
    for run in (plain, checkpointed):
        run.model.train()
        run.train(StepKind.STEADY)
    kept = [run.row(Phase.FORWARD, Category.ACTIVATIONS).live_bytes for run in (plain, checkpointed)]
    assert kept[1] < 0.5 * kept[0]
    peak = checkpointed.row(Phase.BACKWARD, Category.TOTAL).at_peak_bytes
    others = checkpointed.row(Phase.STEP, Category.UNATTRIBUTED).live_bytes  # tensors of other tests in this process
    assert checkpointed.row(Phase.BACKWARD, Category.UNATTRIBUTED).at_peak_bytes - others <= 0.01 * peak


def test_with_accumulation_the_larger_of_two_passes_is_the_peak():
    run = Trained()
    with run.ledger.tracking(run.model):
        for size in (4, 1):
            tokens = torch.randint(0, 512, (size, 64))
            with run.ledger.phase(StepKind.STEADY, Phase.FORWARD):
                loss = run.model(input_ids=tokens, labels=tokens).loss
                run.ledger.mark_loss(loss)
            with run.ledger.phase(StepKind.STEADY, Phase.BACKWARD):
                loss.backward()
                del loss
    total = run.row(Phase.FORWARD, Category.TOTAL)
    assert total.at_peak_bytes > total.live_bytes
    parts = [r for r in run.ledger.rows() if r.phase is Phase.FORWARD and r.place is Place.DEVICE]
    assert sum(r.at_peak_bytes or 0 for r in parts if r.category is not Category.TOTAL) == total.at_peak_bytes


def test_what_is_made_while_the_ledger_rests_is_found_when_it_begins_again():
    run = Trained()
    run.train(StepKind.FIRST)
    run.ledger.rest()
    run.kept.append(torch.zeros(12_500_000))
    run.train(StepKind.STEADY)
    before = run.row(Phase.STEP, Category.UNATTRIBUTED, StepKind.FIRST).live_bytes
    assert 50_000_000 <= run.row(Phase.STEP, Category.UNATTRIBUTED).live_bytes - before < 50_001_000
    run.kept.clear()
    run.ledger.forget(StepKind.STEADY)
    run.train(StepKind.STEADY)
    assert run.row(Phase.STEP, Category.UNATTRIBUTED).live_bytes - before < 1_000
