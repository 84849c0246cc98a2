"""Fine-tunes a Llama's low-rank adapters with TRL."""

from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

config = LlamaConfig(
    vocab_size=32000, hidden_size=256, intermediate_size=688, num_hidden_layers=2, num_attention_heads=4
)
data = Dataset.from_dict({"input_ids": [[i % 32000 for i in range(128)]] * 256})


WORDS = {"unk_token": "<unk>", "eos_token": "<eos>", "pad_token": "<pad>"}


def main():
    vocabulary = {word: number for number, word in enumerate(WORDS.values())}
    words = Tokenizer(WordLevel(vocabulary, unk_token=WORDS["unk_token"]))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **WORDS)
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
