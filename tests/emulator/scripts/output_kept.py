"""A plain loop over a transformers model whose output, keys and values too, is held until the next one is there."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=1000, hidden_size=512, intermediate_size=1376, num_hidden_layers=4, num_attention_heads=8
)
model = LlamaForCausalLM(config).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(10):
    tokens = torch.randint(0, 1000, (4, 512), device="cuda")
    output = model(input_ids=tokens, labels=tokens)
    output.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
