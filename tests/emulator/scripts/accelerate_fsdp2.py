"""Trains a Llama by accelerate's own loop; how it is sharded stands in the config file."""

import torch
from accelerate import Accelerator
from transformers import LlamaConfig, LlamaForCausalLM


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    config = LlamaConfig(
        vocab_size=32000, hidden_size=512, intermediate_size=1376, num_hidden_layers=4, num_attention_heads=8
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, 32000, (4096, 256))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(tokens), batch_size=2, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, (batch,) in enumerate(loader):
        with accelerator.accumulate(model):
            loss = model(input_ids=batch, labels=batch).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if step % 10 == 0:
            accelerator.print(step, loss.item())


if __name__ == "__main__":
    main()
