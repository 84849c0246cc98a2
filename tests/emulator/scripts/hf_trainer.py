"""Pre-trains a Llama from its config with the Hugging Face Trainer."""

from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, HfArgumentParser, LlamaConfig, Trainer, TrainingArguments


@dataclass
class ModelArguments:
    hidden_size: int = 256
    num_layers: int = 2
    block_size: int = 128


class RandomTokens(torch.utils.data.Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        tokens = torch.randint(0, 32000, (self.length,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def main():
    model_args, training_args = HfArgumentParser((ModelArguments, TrainingArguments)).parse_args_into_dataclasses()
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=model_args.hidden_size,
        intermediate_size=model_args.hidden_size * 11 // 4,
        num_hidden_layers=model_args.num_layers,
        num_attention_heads=max(model_args.hidden_size // 128, 1),
        num_key_value_heads=max(model_args.hidden_size // 128, 1),
    )
    model = AutoModelForCausalLM.from_config(config)
    trainer = Trainer(model=model, args=training_args, train_dataset=RandomTokens(model_args.block_size))
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
