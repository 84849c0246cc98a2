"""Fine-tunes a Llama's low-rank adapters with TRL."""

from datasets import Dataset
from peft import LoraConfig
from transformers import LlamaConfig, LlamaForCausalLM
from trl import SFTConfig, SFTTrainer

config = LlamaConfig(
    vocab_size=32000, hidden_size=256, intermediate_size=688, num_hidden_layers=2, num_attention_heads=4
)
data = Dataset.from_dict({"input_ids": [[i % 32000 for i in range(128)]] * 256})


class Tokenizer:
    """Just enough of one: the data set is tokenized."""


def main():
    from transformers import PreTrainedTokenizerFast
    from tokenizers import Tokenizer as Fast
    from tokenizers.models import WordLevel

    fast = Fast(WordLevel({"<unk>": 0, "<eos>": 1, "<pad>": 2}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="<eos>", pad_token="<pad>", unk_token="<unk>")
    trainer = SFTTrainer(
        model=LlamaForCausalLM(config),
        args=SFTConfig(
            output_dir="out", per_device_train_batch_size=4, max_length=128, bf16=True, max_steps=50, report_to=[]
        ),
        train_dataset=data,
        processing_class=tokenizer,
        peft_config=LoraConfig(r=8, target_modules="all-linear"),
    )
    trainer.train()


if __name__ == "__main__":
    main()
