"""Fine-tunes low-rank adapters of a Llama with PEFT and the Hugging Face Trainer."""

from dataclasses import dataclass

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, HfArgumentParser, LlamaConfig, Trainer, TrainingArguments

config = LlamaConfig(
    vocab_size=32000,
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=8,
    num_attention_heads=8,
    attn_implementation="sdpa",
    use_cache=False,
)


@dataclass
class AdapterArguments:
    adapters_in_fp32: bool = True  # PEFT's default


class RandomTokens(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        tokens = torch.randint(0, 32000, (512,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def main():
    adapter_args, training_args = HfArgumentParser((AdapterArguments, TrainingArguments)).parse_args_into_dataclasses()
    model = get_peft_model(
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16),
        LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
        autocast_adapter_dtype=adapter_args.adapters_in_fp32,
    )
    Trainer(model=model, args=training_args, train_dataset=RandomTokens()).train()


if __name__ == "__main__":
    main()
