"""A loop that drops what it made as soon as it may, and prints who is still alive and what the allocator gave out.

Its accuracy is computed with a graph that no backward pass frees, and the model and its optimizer go before the script
ends.
"""

import gc
import json
import sys
import weakref

import torch
from torch import nn

VOCABULARY, WIDTH, TOKENS, STEPS = 4000, 128, 256, 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.block = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def get_output_embeddings(self):
        return self.head

    def forward(self, tokens):
        return self.head(self.block(self.embed(tokens)))


def peaks():
    stats = torch.cuda.memory_stats()
    return [stats["requested_bytes.all.current"], stats["requested_bytes.all.peak"], torch.cuda.max_memory_allocated()]


def alive(references):
    return [name for name, reference in references.items() if reference() is not None]


def train(model, optimizer):
    references = {}
    tokens = torch.randint(0, VOCABULARY, (TOKENS,), device="cuda")
    logits = model(tokens)
    references["logits"] = weakref.ref(logits)
    references["logits' storage"] = weakref.ref(logits.untyped_storage())
    probabilities = logits.softmax(-1)  # autograd saves this result, and its graph is not used
    references["probabilities"] = weakref.ref(probabilities)
    references["their storage"] = weakref.ref(probabilities.untyped_storage())
    halves = logits * 0.5  # autograd saves nothing of these
    del logits, probabilities
    told = {"after forward": alive(references)}
    loss = nn.functional.cross_entropy(halves, tokens)
    references["loss"], references["tokens"] = weakref.ref(loss), weakref.ref(tokens)
    references["halves"] = weakref.ref(halves)
    del halves
    loss.register_hook(lambda _: told.update({"in backward": alive(references)}))
    loss.backward()
    del loss, tokens
    told["after backward"] = alive(references)
    references["gradient"] = weakref.ref(model.head.weight.grad)
    optimizer.step()
    optimizer.zero_grad()
    told["after the step"] = alive(references)
    return told


def main():
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    told = []
    for _ in range(STEPS):
        torch.cuda.reset_peak_memory_stats()
        told.append([train(model, optimizer), peaks()])
    references = {"model": weakref.ref(model), "weight": weakref.ref(model.head.weight)}
    references["optimizer"] = weakref.ref(optimizer)
    del model, optimizer
    gc.collect()
    told.append([{"at the end": alive(references)}, peaks()])
    print(json.dumps(told))


if "--untracked" in sys.argv:
    from zerobench.emulator.inside.values import open_values

    open_values()
main()
