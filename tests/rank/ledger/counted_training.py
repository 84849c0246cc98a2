"""Trains small models of many kinds under the ledger, beside the C library's count; started by test_counted.py."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    MixtralConfig,
    MixtralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

from tests.rank.ledger.counted_ledger import Counted
from zerobench.common.vocabulary import Phase, StepKind
from zerobench.rank.ledger.engine_tensors import NamedTensor, walk_module, walk_optimizer_states

TOKENS = torch.randint(0, 512, (4, 64))
IMAGES = torch.randn(16, 3, 32, 32)
LABELS = torch.randint(0, 10, (16,))
LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 128, "intermediate_size": 256}


class Cnn(nn.Module):
    """The net of DeepSpeedExamples' CIFAR training, wider."""

    def __init__(self) -> None:
        super().__init__()
        self.convolve = nn.Sequential(
            nn.Conv2d(3, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.classify = nn.Sequential(nn.Flatten(), nn.Linear(64 * 5 * 5, 120), nn.ReLU(), nn.Linear(120, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.classify(self.convolve(images)), LABELS)


class WithLoss(nn.Module):
    """A model of transformers that gives its loss."""

    def __init__(self, model: nn.Module, **inputs: torch.Tensor) -> None:
        super().__init__()
        self.model, self.inputs = model, inputs

    def forward(self) -> torch.Tensor:
        loss: torch.Tensor = self.model(**self.inputs).loss
        return loss


def moe() -> nn.Module:
    experts = {"num_local_experts": 4, "num_key_value_heads": 4}
    return WithLoss(
        MixtralForCausalLM(MixtralConfig(**LAYERS, **experts, vocab_size=512)), input_ids=TOKENS, labels=TOKENS
    )


def bert() -> nn.Module:
    return WithLoss(BertForMaskedLM(BertConfig(**LAYERS, vocab_size=512)), input_ids=TOKENS, labels=TOKENS)


def t5() -> nn.Module:
    config = T5Config(
        d_model=128, d_ff=256, d_kv=32, num_layers=2, num_heads=4, vocab_size=512, decoder_start_token_id=0
    )
    return WithLoss(T5ForConditionalGeneration(config), input_ids=TOKENS, labels=TOKENS)


def vit() -> nn.Module:
    config = ViTConfig(**LAYERS, image_size=32, patch_size=4, num_labels=10)
    return WithLoss(ViTForImageClassification(config), pixel_values=IMAGES, labels=LABELS)


class OnImages(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.images = Cnn().to(dtype), IMAGES.to(dtype)

    def forward(self) -> torch.Tensor:
        loss: torch.Tensor = self.model(self.images)
        return loss


class BesideThreads(nn.Module):
    """Another thread makes a tensor meanwhile, which lives on, and C++ alone holds the memory of a third."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(256, 256)
        self.kept: list[torch.Tensor] = []

    def forward(self) -> torch.Tensor:
        thread = threading.Thread(target=lambda: self.kept.append(torch.ones(500_000)))
        thread.start()
        thread.join()
        self.kept.append(torch.ones(500, 500).to_mkldnn())
        loss: torch.Tensor = self.layer(torch.ones(64, 256)).sum()
        return loss


MODELS: dict[str, Callable[[], nn.Module]] = {
    "moe": moe,
    "bert": bert,
    "t5": t5,
    "vit": vit,
    "cnn": lambda: OnImages(torch.float32),
    "cnn-bf16": lambda: OnImages(torch.bfloat16),
    "threads": BesideThreads,
}


def train(name: str) -> None:
    """Start-up and two steps of one model."""
    held: dict[str, nn.Module] = {}
    optimizers: list[torch.optim.Optimizer] = []

    def walk() -> Iterator[NamedTensor]:
        yield from (named for model in held.values() for named in walk_module(model))
        yield from (named for optimizer in optimizers for named in walk_optimizer_states(optimizer))

    counted = Counted(name, walk)
    with counted.ledger.tracking(), counted.phase(StepKind.FIRST, Phase.INIT):
        model = held["model"] = MODELS[name]()
        optimizers.append(torch.optim.AdamW(model.parameters()))
    for step in StepKind:
        with counted.ledger.tracking(model):
            with counted.phase(step, Phase.FORWARD):
                loss = model()
            with counted.phase(step, Phase.BACKWARD):
                loss.backward()
                del loss
            with counted.phase(step, Phase.STEP):
                optimizers[0].step()
                optimizers[0].zero_grad()
    counted.tell()


if __name__ == "__main__":
    torch.manual_seed(0)
    for each in MODELS:
        train(each)
