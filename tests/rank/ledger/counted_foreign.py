"""Trains models and loops of ten kinds that people bring, under the ledger and beside the C library's count.

Started by test_counted_foreign.py. None of the models is of a package whose places of birth are known.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.rank.ledger.counted_ledger import Counted
from zerobench.common.vocabulary import Phase, StepKind
from zerobench.rank.ledger.engine_tensors import NamedTensor, walk_module, walk_optimizer_states

BATCH, TOKENS, WIDTH, VOCABULARY = 4, 64, 128, 1000


class Training:
    """A model, its optimizer and its loop; kinds that differ say how."""

    def __init__(self) -> None:
        self.model = self.build()
        self.optimizers: Sequence[torch.optim.Optimizer] = [torch.optim.AdamW(self.model.parameters(), lr=1e-3)]

    def build(self) -> nn.Module:
        raise NotImplementedError

    def forward(self) -> torch.Tensor:
        raise NotImplementedError

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()


def tokens() -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (BATCH, TOKENS))


def images(size: int = 32) -> torch.Tensor:
    return torch.randn(BATCH, 3, size, size)


class Unet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)])
        self.middle = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.SiLU())
        self.up = nn.ModuleList([nn.ConvTranspose2d(64, 16, 2, stride=2), nn.ConvTranspose2d(32, 3, 2, stride=2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for convolve in self.down:
            x = functional.max_pool2d(torch.relu(convolve(x)), 2)
            skips.append(x)
        x = self.middle(x)
        for expand in self.up:
            x = expand(torch.cat([x, skips.pop()], 1))
        return x


class Diffusion(Training):
    """A U-Net with skip connections that predicts noise."""

    def build(self) -> nn.Module:
        return Unet()

    def forward(self) -> torch.Tensor:
        noise = torch.randn(BATCH, 3, 32, 32)
        return functional.mse_loss(self.model(images() + noise), noise)


class LstmModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: torch.Tensor, state: tuple[torch.Tensor, ...] | None) -> tuple[torch.Tensor, ...]:
        hidden, state = self.lstm(self.embed(x), state)
        return self.head(hidden), *state


class LstmLanguageModel(Training):
    """Truncated backpropagation through time: the state is carried over, detached."""

    state: tuple[torch.Tensor, ...] | None = None

    def build(self) -> nn.Module:
        return LstmModel()

    def forward(self) -> torch.Tensor:
        x = tokens()
        logits, *state = self.model(x, self.state)
        self.state = tuple(part.detach() for part in state)
        return functional.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), x[:, 1:].reshape(-1))

    def step(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        super().step()


class GraphLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.message, self.own = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        sent = self.message(nodes)[edges[0]]
        received = torch.zeros_like(nodes).index_add(0, edges[1], sent)
        degree = torch.zeros(len(nodes)).scatter_add(0, edges[1], torch.ones(edges.shape[1])).clamp(min=1)
        return torch.relu(self.own(nodes) + received / degree[:, None])


class GraphNetwork(Training):
    """Messages gathered by edge and scattered to nodes."""

    def build(self) -> nn.Module:
        return nn.ModuleList([GraphLayer() for _ in range(3)])

    def forward(self) -> torch.Tensor:
        nodes, edges = torch.randn(500, WIDTH), torch.randint(0, 500, (2, 4000))
        for layer in self.model.children():
            nodes = layer(nodes, edges)
        return functional.cross_entropy(nodes, torch.randint(0, WIDTH, (500,)))


class VisionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 8, stride=8)
        self.positions = nn.Parameter(torch.zeros(1, 17, WIDTH))
        self.first = nn.Parameter(torch.zeros(1, 1, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.encoder(x)[:, 0])


class ImageClassifier(Training):
    """torch's own encoder layers with dropout, a schedule, and an accuracy whose graph nobody goes back through."""

    def __init__(self) -> None:
        super().__init__()
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizers[0], 10)

    def build(self) -> nn.Module:
        return VisionTransformer()

    def forward(self) -> torch.Tensor:
        logits, labels = self.model(images()), torch.randint(0, 10, (BATCH,))
        self.sure = logits.softmax(-1).max().item()
        return functional.cross_entropy(logits, labels, label_smoothing=0.1)

    def step(self) -> None:
        super().step()
        self.schedule.step()


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 64))
        self.decode = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 784))

    def forward(self, x: torch.Tensor) -> Any:
        mean, log_variance = self.encode(x).chunk(2, -1)
        drawn = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
        return functional.binary_cross_entropy_with_logits(self.decode(drawn), x, reduction="sum") + divergence


class VariationalAutoencoder(Training):
    """The model gives its loss; momentum in place of Adam, two micro-batches a step."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizers = [torch.optim.SGD(self.model.parameters(), lr=1e-5, momentum=0.9, nesterov=True)]

    def build(self) -> nn.Module:
        return Vae()

    def forward(self) -> Any:
        first = self.model(torch.rand(64, 784))
        return first + self.model(torch.rand(64, 784))


class Seq2Seq(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Embedding(VOCABULARY, WIDTH)
        self.transformer = nn.Transformer(WIDTH, 4, 2, 2, 256, dropout=0.1, batch_first=True)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        hidden = self.transformer(self.shared(source), self.shared(target), tgt_mask=mask)
        return hidden @ self.shared.weight.t()  # tied


class Translation(Training):
    """An encoder and a decoder with tied embeddings, by Adafactor."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizers = [torch.optim.Adafactor(self.model.parameters())]

    def build(self) -> nn.Module:
        return Seq2Seq()

    def forward(self) -> torch.Tensor:
        target = tokens()
        logits = self.model(tokens(), target[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())


class Scan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project, self.gates = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, 3 * 16)
        self.decay, self.out = nn.Parameter(torch.zeros(WIDTH, 16)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        value, gate = self.project(x).chunk(2, -1)
        step, into, out = self.gates(value).chunk(3, -1)
        state = value.new_zeros(len(x), WIDTH, 16)
        seen = []
        for at in range(x.shape[1]):
            kept = torch.exp(-functional.softplus(step[:, at, None]) * self.decay.exp())
            state = state * kept + value[:, at, :, None] * into[:, at, None]
            seen.append((state * out[:, at, None]).sum(-1))
        return x + self.out(torch.stack(seen, 1) * functional.silu(gate))


class StateSpace(Training):
    """A selective scan step by step, recomputed in the backward pass."""

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), Scan(), Scan(), nn.Linear(WIDTH, VOCABULARY))

    def forward(self) -> torch.Tensor:
        embed, first, second, head = self.model.children()
        x = tokens()
        hidden = embed(x)
        for scan in (first, second):
            hidden = torch.utils.checkpoint.checkpoint(scan, hidden, use_reentrant=False)
        return functional.cross_entropy(head(hidden).flatten(0, 1), x.flatten())


class Adversaries(Training):
    """Two models, two optimizers, two backward passes a step; one loss goes back through both models."""

    def __init__(self) -> None:
        super().__init__()
        parts = list(self.model.children())
        self.optimizers = [torch.optim.Adam(part.parameters(), betas=(0.5, 0.999)) for part in parts]

    def build(self) -> nn.Module:
        generate = nn.Sequential(
            nn.ConvTranspose2d(32, 32, 8), nn.BatchNorm2d(32), nn.ReLU(), nn.ConvTranspose2d(32, 3, 4, 4), nn.Tanh()
        )
        judge = nn.Sequential(
            nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 32, 4, 4)),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(2048, 1),
        )
        return nn.ModuleList([generate, judge])

    def forward(self) -> torch.Tensor:
        generate, judge = self.model.children()
        self.made = generate(torch.randn(BATCH, 32, 1, 1))
        real, false = judge(images()), judge(self.made.detach())
        return functional.softplus(-real).mean() + functional.softplus(false).mean()

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()
        _, judge = self.model.children()
        functional.softplus(-judge(self.made)).mean().backward()
        del self.made


class Siamese(Training):
    """One encoder twice, in the contrastive loss of all pairs; gradients of gradients as a penalty."""

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(3072, 256), nn.GELU(), nn.Linear(256, 64))

    def forward(self) -> torch.Tensor:
        left, right = images().requires_grad_(), images()
        ours, theirs = (functional.normalize(self.model(side), dim=-1) for side in (left, right))
        loss = functional.cross_entropy(ours @ theirs.t() / 0.1, torch.arange(BATCH))
        (slope,) = torch.autograd.grad(loss, left, create_graph=True)
        return loss + slope.square().sum()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.attend = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.norm = nn.RMSNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.norm(self.embed(x))
        attended, self.weights = self.attend(hidden, hidden, hidden)
        return self.head(hidden + attended)


class Averaged(Training):
    """Mixed precision with a loss scale, the attention's weights kept for show, and a moving average of all weights."""

    def __init__(self) -> None:
        super().__init__()
        self.average = copy.deepcopy(self.model)
        self.scaler = torch.amp.GradScaler("cpu")

    def build(self) -> nn.Module:
        return Attention()

    def forward(self) -> torch.Tensor:
        x = tokens()
        with torch.autocast("cpu", torch.bfloat16):
            logits = self.model(x)
        return functional.cross_entropy(logits.float().flatten(0, 1), x.flatten())

    def backward(self, loss: torch.Tensor) -> None:
        self.scaler.scale(loss).backward()

    def step(self) -> None:
        (optimizer,) = self.optimizers
        self.scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(optimizer)
        self.scaler.update()
        with torch.no_grad():
            for average, weight in zip(self.average.parameters(), self.model.parameters(), strict=True):
                average.lerp_(weight, 0.01)
        optimizer.zero_grad()


KINDS: dict[str, type[Training]] = {
    kind.__name__: kind
    for kind in (
        Diffusion,
        LstmLanguageModel,
        GraphNetwork,
        ImageClassifier,
        VariationalAutoencoder,
        Translation,
        StateSpace,
        Adversaries,
        Siamese,
        Averaged,
    )
}


def train(name: str) -> None:
    """Start-up and two steps of one kind."""
    gc.collect()  # of the one before: a parametrised module holds itself
    trainings: list[Training] = []

    def walk() -> Iterator[NamedTensor]:
        for training in trainings:
            yield from walk_module(training.model)
            for optimizer in training.optimizers:
                yield from walk_optimizer_states(optimizer)

    counted = Counted(name, walk)
    with counted.ledger.tracking(), counted.phase(StepKind.FIRST, Phase.INIT):
        training = KINDS[name]()
        trainings.append(training)
    for step in StepKind:
        with counted.ledger.tracking(training.model):
            with counted.phase(step, Phase.FORWARD):
                loss = training.forward()
            with counted.phase(step, Phase.BACKWARD):
                training.backward(loss)
                del loss
            with counted.phase(step, Phase.STEP):
                training.step()
    counted.tell()


if __name__ == "__main__":
    torch.manual_seed(0)
    for each in KINDS:
        train(each)
