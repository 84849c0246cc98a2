"""Every byte of a training step has a name by evidence, and what has none is said to have none."""

from __future__ import annotations

import gc

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.tools.at_least_one import at_least_one
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.rank.ledger.engine_tensors import walk_module, walk_optimizer_states
from zerobench.rank.ledger.held import UNSEEN
from zerobench.rank.ledger.ledger import Ledger
from zerobench.rank.ledger.sites import Site
from zerobench.rank.ledger.storages import Storage, StorageCounter
from zerobench.rank.training.recomputation import enable_checkpointing
from zerobench.records.records import HostStanding

TOKENS = torch.randint(0, 512, (2, 64))
CPU = torch.device("cpu")


def _held_by_others() -> int:
    """Bytes of tensors that other tests of this process left behind: of the total, and nobody's here."""
    gc.collect()
    tensors = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}
    held: int = sum(storages.values()) - TOKENS.nbytes
    return held


class Trained:
    """A small Llama and its AdamW, trained under a ledger."""

    def __init__(self, *, checkpointing=False):
        shape = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 256}
        config = LlamaConfig(**shape, num_key_value_heads=4, vocab_size=512, use_cache=False)
        self.found_bytes = _held_by_others()
        self.model = LlamaForCausalLM(config)
        if checkpointing:
            enable_checkpointing(self.model, checkpointing=True)
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

    def twice(self):
        for step in StepKind:
            self.train(step)
        return self

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
    return Trained().twice()


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
    for total in at_least_one([r for r in rows if r.category is Category.TOTAL]):
        parts = [
            r for r in rows if (r.step, r.phase, r.place) == (total.step, total.phase, total.place) and r is not total
        ]
        assert sum(r.live_bytes for r in parts) == total.live_bytes
        assert sum(r.at_peak_bytes for r in parts) == total.at_peak_bytes


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.BACKWARD, Phase.STEP])
def test_less_than_one_percent_of_the_peak_has_no_name(trained, phase):
    peak = trained.row(phase, Category.TOTAL).at_peak_bytes - trained.found_bytes
    unnamed = trained.row(phase, Category.UNATTRIBUTED).at_peak_bytes - trained.found_bytes
    assert abs(unnamed) <= 0.01 * peak


def test_fifty_megabytes_that_nobody_names_appear_as_unattributed():
    run = Trained()
    run.train(StepKind.FIRST)
    run.train(StepKind.STEADY, during_forward=lambda: run.kept.append(torch.zeros(12_500_000)))
    # Other tests' models are alive in this process and nameless too, so the difference is looked at.
    for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.STEP):
        before = run.row(phase, Category.UNATTRIBUTED, StepKind.FIRST).live_bytes
        planted = run.row(phase, Category.UNATTRIBUTED).live_bytes - before
        assert 50_000_000 <= planted < 50_001_000


def rows_of_a_step(run):
    run.ledger.forget(StepKind.STEADY)
    run.train(StepKind.STEADY)
    return {
        (r.phase, r.category): r for r in run.ledger.rows() if r.step is StepKind.STEADY and r.place is Place.DEVICE
    }


def begun():
    """After a first step, with the rows of one more."""
    gc.collect()
    run = Trained()
    run.train(StepKind.FIRST)
    return run, rows_of_a_step(run)


@pytest.fixture(scope="module", params=["a layer's output in a list", "a tensor on a module", "the logits"])
def leaked(request):
    run, before = begun()
    keep = {
        "a layer's output in a list": lambda m, out: run.kept.append(out.detach() * 1),
        "a tensor on a module": lambda m, out: setattr(m, "seen", out.detach() * 1),
        "the logits": lambda m, out: run.kept.append(out.detach()),
    }[request.param]
    module = run.model.lm_head if request.param == "the logits" else run.model.model.layers[0]
    handle = module.register_forward_hook(lambda m, _i, out: keep(m, out))
    rows_of_a_step(run)
    handle.remove()
    leaked_bytes = TOKENS.numel() * (512 if request.param == "the logits" else 128) * 4
    return before, rows_of_a_step(run), leaked_bytes


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.BACKWARD, Phase.STEP])
def test_a_tensor_that_the_model_leaks_has_no_name_from_the_next_step_on(leaked, phase):
    before, after, leaked_bytes = leaked
    grown = {c: after[p, c].live_bytes - row.live_bytes for (p, c), row in before.items() if p is phase}
    assert {c: n for c, n in grown.items() if n} == {Category.UNATTRIBUTED: leaked_bytes, Category.TOTAL: leaked_bytes}


def test_a_leak_is_no_activation_at_the_peak_of_a_later_forward_pass(leaked):
    before, after, leaked_bytes = leaked
    for category in (Category.ACTIVATIONS, Category.LOGITS_AND_LOSS, Category.TEMPORARIES):
        rows = [step[Phase.FORWARD, category] for step in (before, after)]
        assert rows[0].at_peak_bytes == rows[1].at_peak_bytes
        assert rows[0].own_peak_bytes == rows[1].own_peak_bytes
    peaks = [step[Phase.FORWARD, Category.UNATTRIBUTED].at_peak_bytes for step in (before, after)]
    assert peaks[1] - peaks[0] == leaked_bytes


def test_a_leak_of_a_step_that_is_only_watched_has_no_name_in_the_next():
    run, before = begun()
    handle = run.model.model.layers[0].register_forward_hook(lambda _m, _i, out: run.kept.append(out.detach() * 1))
    with run.ledger.watching(run.model):
        run.model(input_ids=TOKENS)
    handle.remove()
    after = rows_of_a_step(run)
    grown = {c: after[p, c].live_bytes - row.live_bytes for (p, c), row in before.items() if p is Phase.FORWARD}
    leaked_bytes = TOKENS.numel() * 128 * 4
    assert {c: n for c, n in grown.items() if n} == {Category.UNATTRIBUTED: leaked_bytes, Category.TOTAL: leaked_bytes}


@pytest.mark.parametrize("is_watched", [False, True])
def test_an_output_that_the_loop_s_variable_holds_until_the_next_one_is_logits_and_loss(is_watched):
    run, before = begun()
    handle = run.model.register_forward_hook(lambda _m, _i, out: run.kept.append(out.logits.detach()))
    if is_watched:
        with run.ledger.watching(run.model):
            run.model(input_ids=TOKENS)
    else:
        run.train(StepKind.STEADY)
    handle.remove()
    handle = run.model.register_forward_hook(lambda _m, _i, _out: run.kept.clear())
    after = rows_of_a_step(run)
    handle.remove()
    unnamed = [step[Phase.FORWARD, Category.UNATTRIBUTED].own_peak_bytes for step in (before, after)]
    assert unnamed[0] == unnamed[1]
    named = [step[Phase.FORWARD, Category.LOGITS_AND_LOSS].at_peak_bytes for step in (before, after)]
    assert named[1] - named[0] == TOKENS.numel() * 512 * 4


def test_what_the_model_let_go_of_in_a_later_step_has_no_name_there_either():
    run, before = begun()
    handle = run.model.model.layers[0].register_forward_hook(lambda _m, _i, out: run.kept.append(out.detach() * 1))
    run.train(StepKind.STEADY)
    handle.remove()
    handle = run.model.model.layers[2].register_forward_hook(lambda _m, _i, _out: run.kept.clear())
    after = rows_of_a_step(run)
    handle.remove()
    temporaries, unnamed = (
        [step[Phase.FORWARD, category].own_peak_bytes for step in (before, after)]
        for category in (Category.TEMPORARIES, Category.UNATTRIBUTED)
    )
    assert temporaries[0] == temporaries[1]
    assert unnamed[1] - unnamed[0] == TOKENS.numel() * 128 * 4


def test_what_start_up_left_behind_is_no_activation_of_the_first_step():
    gc.collect()
    run = Trained()
    made = []
    with run.ledger.tracking(run.model), run.ledger.phase(StepKind.FIRST, Phase.INIT):
        made.append(run.model.model.rotary_emb(torch.ones(4096, 1), torch.arange(4096)[None]))
    nbytes = sum(t.untyped_storage().nbytes() for t in made[0])
    run.train(StepKind.FIRST)
    run.train(StepKind.STEADY)
    for phase in (Phase.INIT, Phase.FORWARD, Phase.BACKWARD, Phase.STEP):
        assert run.row(phase, Category.UNATTRIBUTED, StepKind.FIRST).live_bytes >= nbytes
    first, steady = (run.row(Phase.FORWARD, Category.ACTIVATIONS, kind) for kind in StepKind)
    assert first.live_bytes == steady.live_bytes


def test_a_batch_is_inputs_for_as_long_as_the_data_loader_holds_it():
    run = Trained().twice()
    for kind in StepKind:
        assert run.row(Phase.STEP, Category.INPUTS, kind).live_bytes == TOKENS.nbytes


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


def accumulated(*sizes):
    """One step of several passes over batches of these sizes, rows by phase and category."""
    gc.collect()
    run = Trained()
    with run.ledger.tracking(run.model):
        for size in sizes:
            tokens = torch.zeros(size, 64, dtype=torch.long)
            run.ledger.name_inputs([tokens])
            with run.ledger.phase(StepKind.STEADY, Phase.FORWARD):
                loss = run.model(input_ids=tokens, labels=tokens).loss
                run.ledger.mark_loss(loss)
            with run.ledger.phase(StepKind.STEADY, Phase.BACKWARD):
                loss.backward()
                del loss
    return {(r.phase, r.category): r for r in run.ledger.rows() if r.place is Place.DEVICE}


@pytest.mark.parametrize("sizes", [(4, 1), (1, 4), (1, 4, 1)])
def test_with_accumulation_the_peak_is_that_of_the_largest_pass_category_by_category(sizes):
    alone, passes = accumulated(4), accumulated(*sizes)
    gradients = 0 if sizes[0] == 4 else alone[Phase.BACKWARD, Category.GRADIENTS].live_bytes
    for category in (Category.ACTIVATIONS, Category.LOGITS_AND_LOSS, Category.TEMPORARIES, Category.PARAMETERS):
        largest, row = alone[Phase.FORWARD, category], passes[Phase.FORWARD, category]
        assert (row.at_peak_bytes, row.own_peak_bytes) == (largest.at_peak_bytes, largest.own_peak_bytes)
    assert passes[Phase.FORWARD, Category.GRADIENTS].at_peak_bytes == gradients
    parts = [r for (p, c), r in passes.items() if p is Phase.FORWARD and c is not Category.TOTAL]
    assert sum(r.at_peak_bytes for r in parts) == passes[Phase.FORWARD, Category.TOTAL].at_peak_bytes


def test_with_accumulation_what_lives_is_what_the_last_pass_left():
    last, passes = accumulated(1), accumulated(4, 1)
    for category in (Category.ACTIVATIONS, Category.LOGITS_AND_LOSS):
        assert passes[Phase.FORWARD, category].live_bytes == last[Phase.FORWARD, category].live_bytes


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


def test_the_random_states_that_checkpointing_keeps_are_activations_until_backward_has_used_them():
    run = Trained(checkpointing=True).twice()
    state_bytes = torch.get_rng_state().nbytes  # made in C++, where no operation shows it
    held, gone = run.row(Phase.FORWARD, Category.ACTIVATIONS), run.row(Phase.BACKWARD, Category.ACTIVATIONS)
    blocks, hidden_bytes = 3, TOKENS.numel() * 128 * 4
    assert held.live_bytes % hidden_bytes >= blocks * state_bytes
    assert gone.live_bytes == 0
    nameless = [run.row(phase, Category.UNATTRIBUTED).live_bytes for phase in (Phase.FORWARD, Phase.STEP)]
    assert abs(nameless[0] - nameless[1]) < state_bytes


def test_the_host_of_a_cpu_rank_is_told_at_each_peak_by_category_module_and_site():
    told: list[HostStanding] = []
    trained = Trained()
    trained.ledger.tell_host = told.append
    trained.train(StepKind.FIRST)
    assert [standing.at for standing in told] == [
        "the peak of the forward phase of the first step",
        "the peak of the backward phase of the first step",
        "the peak of the step phase of the first step",
    ]
    forward, last = told[0], told[-1]
    assert last.by_category[Category.PARAMETERS] == trained.parameter_bytes
    assert last.by_category[Category.SECOND_MOMENT] == trained.parameter_bytes
    assert forward.by_module["LlamaMLP"] > 0
    assert any(site.startswith("transformers/") for site in forward.by_site)
    tensors = sum(forward.by_category.values()) - forward.by_category.get(Category.REST_OF_PROCESS, 0)
    assert sum(forward.by_site.values()) == tensors
    assert trained.ledger.host_peak == max(told, key=lambda standing: standing.total_bytes)


def test_where_start_up_was_born_is_taken_from_who_looked_on_and_is_not_guessed_of_the_rest():
    """Both are adopted; the births of the first were seen by another counter."""

    def site() -> Site:
        return Site("deepspeed/runtime/zero/stage_1_and_2.py:__init__", Category.PARAMETERS)

    with StorageCounter(site) as at_start:
        seen = torch.ones(1000)
    unseen = torch.ones(10)
    trained = Trained()
    at_start.live[123] = Storage(99, 8, "cuda", 0, site())
    trained.ledger.inherit_births(at_start)
    assert trained.ledger.counter.born_before(123) == Site(site().name, None), "a GPU's, too"
    standing = trained.ledger.host_standing(Phase.INIT, "now")
    assert standing.by_site["deepspeed/runtime/zero/stage_1_and_2.py:__init__"] == seen.nbytes
    assert standing.by_site[UNSEEN] >= unseen.nbytes + trained.parameter_bytes
    assert "unknown" not in standing.by_site
    adopted = trained.ledger.counter.find(seen)
    assert adopted is not None
    assert adopted.birth.proves is None


def test_what_the_host_holds_is_told_at_any_instant():
    trained, seen = Trained(), []
    with trained.ledger.tracking(trained.model), trained.ledger.phase(StepKind.FIRST, Phase.FORWARD):
        loss = trained.model(input_ids=TOKENS, labels=TOKENS).loss
        seen.append(trained.ledger.host_standing(Phase.FORWARD, "now"))
    assert loss is not None
    [standing] = seen
    assert standing.by_category[Category.PARAMETERS] == trained.parameter_bytes
    assert standing.by_category[Category.ACTIVATIONS] > 0
    assert standing.by_category[Category.REST_OF_PROCESS] > 0
