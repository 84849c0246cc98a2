"""A training loop in the manner of DeepSpeed's examples."""

import argparse

import deepspeed
import torch
from transformers import LlamaConfig, LlamaForCausalLM


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=3)
    return deepspeed.add_config_arguments(parser).parse_args()


def main():
    args = parse()
    deepspeed.init_distributed()
    torch.cuda.set_device(args.local_rank)
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=args.hidden,
        intermediate_size=args.hidden * 11 // 4,
        num_hidden_layers=args.layers,
        num_attention_heads=max(args.hidden // 64, 1),
    )
    model = LlamaForCausalLM(config)
    dataset = torch.utils.data.TensorDataset(torch.randint(0, 32000, (4096, args.length)))
    engine, _, loader, _ = deepspeed.initialize(
        args=args, model=model, model_parameters=model.parameters(), training_data=dataset
    )
    for epoch in range(args.epochs):
        for step, (tokens,) in enumerate(loader):
            batch = tokens.to(engine.device)
            loss = engine(input_ids=batch, labels=batch).loss
            engine.backward(loss)
            engine.step()
            if torch.distributed.get_rank() == 0 and step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}")
    engine.save_checkpoint("checkpoints")


if __name__ == "__main__":
    main()
