"""Bytes of a model that no known package holds have names too: by its own classes, and by when they were born."""

import gc

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.rank.ledger.engine_tensors import walk_module, walk_optimizer_states
from zerobench.rank.ledger.ledger import Ledger
from zerobench.rank.ledger.model_sites import ModelSites
from zerobench.rank.ledger.sites import Origin

ROWS, WIDTH, CLASSES = 64, 128, 1000


class Block(torch.nn.Module):
    """Somebody's own layer."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return torch.tanh(self.layer(x)) * 2.0


class Classifier(torch.nn.Module):
    """Somebody's own model."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.Sequential(Block(), Block())
        self.head = torch.nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.head(self.blocks(x))


def ledger_of(model, loss_of):
    """One step under the ledger, as the tracker makes it: the loss is computed outside of the model."""
    optimizer = torch.optim.SGD(model.parameters())
    sites = ModelSites(model)
    walk = lambda: [*walk_module(model), *walk_optimizer_states(optimizer)]  # noqa: E731 -- two walks in one
    ledger = Ledger(torch.device("cpu"), walk, sites=sites)
    x, labels = torch.randn(ROWS, WIDTH), torch.randint(0, CLASSES, (ROWS,))
    with ledger.tracking(model):
        ledger.name_inputs([x, labels])
        with ledger.phase(StepKind.STEADY, Phase.FORWARD):
            logits = model(x)
            ledger.name_logits(logits)
            sites.after_forward = True
            loss = loss_of(logits, labels)
            sites.after_forward = False
            ledger.mark_loss(loss)
        with ledger.phase(StepKind.STEADY, Phase.BACKWARD):
            loss.backward()
            del loss, logits
        with ledger.phase(StepKind.STEADY, Phase.STEP):
            optimizer.step()
            optimizer.zero_grad()
    return {(r.phase, r.category): r for r in ledger.rows() if r.place is Place.DEVICE}


def test_an_own_models_activations_are_named_to_the_byte():
    rows = ledger_of(Classifier(), functional.cross_entropy)
    # Each block keeps its tanh (for its own backward) and its product (the next layer's input).
    assert rows[Phase.FORWARD, Category.ACTIVATIONS].live_bytes == 4 * ROWS * WIDTH * 4


def test_logits_and_a_loss_computed_outside_of_the_model_are_named():
    rows = ledger_of(Classifier(), functional.cross_entropy)
    live = rows[Phase.FORWARD, Category.LOGITS_AND_LOSS].live_bytes
    assert ROWS * CLASSES * 4 * 2 <= live <= ROWS * CLASSES * 4 * 2 + 64  # logits, their log-softmax, the scalars


def test_a_loss_module_counts_as_the_loss():
    model = Classifier()
    model.criterion = torch.nn.CrossEntropyLoss()
    rows = ledger_of(model, model.criterion)
    assert rows[Phase.FORWARD, Category.LOGITS_AND_LOSS].live_bytes >= ROWS * CLASSES * 4 * 2


def test_at_the_peak_of_the_backward_pass_no_byte_of_the_step_is_without_a_name():
    gc.collect()
    rows = ledger_of(Classifier(), functional.cross_entropy)
    strangers = rows[Phase.STEP, Category.UNATTRIBUTED].live_bytes  # what other tests left in this process
    assert rows[Phase.BACKWARD, Category.UNATTRIBUTED].at_peak_bytes - strangers <= 64
    assert rows[Phase.BACKWARD, Category.TOTAL].at_peak_bytes > 2 * ROWS * CLASSES * 4


def test_what_no_code_claims_is_the_losss_from_the_forward_pass_to_the_backward_pass_alone():
    sites = ModelSites(Classifier())
    assert sites().proves is None
    sites.after_forward = True
    assert sites().proves is Origin.LOSS


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(("has_buckets", "proves"), [(True, Category.GRADIENTS), (False, Origin.AUTOGRAD)])
def test_what_is_born_where_a_gradient_is_added_up_is_a_bucket_under_ddp_alone(group, has_buckets, proves):
    layer, born = torch.nn.Linear(2, 2, bias=False), []
    sites = ModelSites(DistributedDataParallel(layer) if has_buckets else layer)
    layer.weight.register_post_accumulate_grad_hook(lambda _: born.append(sites().proves))
    layer(torch.ones(1, 2)).sum().backward()
    assert born == [proves]


def test_a_known_package_still_speaks_before_the_models_own_classes():
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    sites = ModelSites(LlamaForCausalLM(LlamaConfig(**shape, num_key_value_heads=2, vocab_size=64)))
    code = LlamaForCausalLM.forward.__wrapped__.__code__
    site = sites._judge(code)
    assert site is not None
    assert site.name.startswith("transformers/models/llama/")
