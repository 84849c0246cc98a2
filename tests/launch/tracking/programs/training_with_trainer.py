"""A user's training: the Hugging Face Trainer under DeepSpeed, with a configuration that zerobench did not write.

    deepspeed training_with_trainer.py <folder for reports and outputs> <DeepSpeed JSON>...

One Trainer for each configuration, one after the other.
"""

import sys
from pathlib import Path

import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import zerobench

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}


class Sentences(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Random tokens, their own labels."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = torch.randint(0, 512, (32,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def train(folder: Path, config: Path) -> None:
    """One Trainer, eight optimizer steps of two micro-batches."""
    arguments = TrainingArguments(
        output_dir=str(folder / "outputs"),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=8,
        learning_rate=1e-3,
        max_grad_norm=1.0,
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        deepspeed=str(config),
    )
    model = LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=4, vocab_size=512, use_cache=False))
    trainer = Trainer(model=model, args=arguments, train_dataset=Sentences())
    callback = zerobench.TrainerCallback(name=config.stem, reports=folder / "reports", warmup=1, timed=2)
    trainer.add_callback(callback)
    trainer.train()
    assert callback.tracker is not None
    print(f"{config.stem}: tracked {callback.tracker.done}, left {sorted(vars(trainer.deepspeed).keys() & METHODS)}")


METHODS = {"forward", "backward", "step"}

for name in sys.argv[2:]:
    train(Path(sys.argv[1]), Path(name))
    for state in (AcceleratorState, GradientState):
        state._reset_state()
    PartialState._reset_state()
