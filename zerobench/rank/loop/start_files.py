"""Writes the starting point of ranks without torch: the same weights, tokens and learning rates that torch's ranks
have.

Weights are drawn by torch's generators and tokens come from torch's datasets (weights.py, data.py), so the main
environment writes them and an engine of another framework reads them as NumPy arrays:

    parameters/<n>.npy     fp32, as transformers holds it; start.json names them in the model's order
    buffers/<n>.npy        registered buffers (rotary frequencies)
    tokens.npy             int64 [steps, global_batch_size, sequence_length], samples in the order of the data set
    start.json             the model's whole config, names of parameters and buffers, the component of each
                           parameter, a learning rate for each step
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from zerobench.config.trial.trial import TrialSpec
from zerobench.rank.ledger.components import components_of
from zerobench.rank.training.data import make_dataset
from zerobench.rank.training.model import prepare_model
from zerobench.rank.training.schedule import learning_rate
from zerobench.rank.training.weights import fill_weights
from zerobench.records.folder import TrialFolder, write_whole


def main() -> int:
    """Write the files for the trial in one folder into another."""
    parser = argparse.ArgumentParser(prog="zerobench.rank.loop.start_files", description=__doc__)
    parser.add_argument("--trial-folder", type=Path, required=True, help="folder that holds trial.json")
    parser.add_argument("--into", type=Path, required=True, help="an empty folder")
    arguments = parser.parse_args()
    text = TrialFolder(arguments.trial_folder).spec.read_text(encoding="utf-8")
    write_start(TrialSpec.model_validate_json(text), arguments.into)
    return 0


def write_start(trial: TrialSpec, into: Path) -> None:
    """Write the starting point of every rank of `trial` into the existing folder `into`.

    Raises OSError if it cannot be written, ValueError if the trial's data is too short (rank/training/data.py).
    """
    model: Any = prepare_model(trial, torch.device("cpu"), trial.attention)()
    fill_weights(model, trial.hyperparameters.seed)
    tensors = {"parameters": list(model.named_parameters()), "buffers": list(model.named_buffers())}
    for kind, named in tensors.items():
        (into / kind).mkdir()
        for number, (_, tensor) in enumerate(named):
            np.save(into / kind / f"{number}.npy", tensor.detach().float().numpy(), allow_pickle=False)
    steps, samples = trial.steps.total, trial.global_batch_size
    dataset = make_dataset(trial, steps * samples, int(model.config.vocab_size))
    rows = np.stack([dataset[index].numpy() for index in range(steps * samples)])
    np.save(into / "tokens.npy", rows.reshape(steps, samples, trial.sequence_length), allow_pickle=False)
    start = {
        "config": model.config.to_dict(),
        **{kind: [name for name, _ in named] for kind, named in tensors.items()},
        "components": components_of(model),
        "learning_rates": [learning_rate(step, trial.hyperparameters) for step in range(trial.steps.total)],
    }
    write_whole(into / "start.json", json.dumps(start, default=str))


if __name__ == "__main__":
    sys.exit(main())
