"""What becomes of every key that DeepSpeed knows, held against the table, the rules and DeepSpeed itself."""

import copy
import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.config.deepspeed.key_samples import KEYS, obeying, sample, trials
from tests.tools.at_least_one import at_least_one
from zerobench.config.deepspeed import build_ds_config, ds_config_refusal
from zerobench.config.deepspeed import facts as facts_module
from zerobench.config.deepspeed.facts import Fate, fact_of, key_facts
from zerobench.config.deepspeed.keys import find, known_keys
from zerobench.config.deepspeed.user_file import leaves
from zerobench.config.hardware.toolchain import package_folder
from zerobench.rank.ledger.engine_config import parsed_config

OBEYED = [path for path in KEYS if fact_of(path).fate in {Fate.OBEYED, Fate.CONDITIONAL}]
REFUSED = [path for path in KEYS if path not in OBEYED]


def test_every_key_that_deepspeed_knows_is_in_exactly_one_group() -> None:
    raw = json.loads(Path(facts_module.__file__).with_name("key_facts.json").read_text())
    entries = Counter(entry for group in raw["groups"] for entry in group["keys"])
    assert [entry for entry, count in entries.items() if count > 1] == []
    sections = tuple(entry.removesuffix("*") for entry in entries if entry.endswith(".*"))
    groups = {path: (path in entries) + sum(path.startswith(section) for section in sections) for path in KEYS}
    assert {path: count for path, count in groups.items() if count != 1} == {}


def test_every_entry_of_the_table_is_a_key_of_deepspeeds() -> None:
    for entry in at_least_one(key_facts()):
        section = entry.removesuffix(".*")
        key = find(section)
        assert key is not None, entry
        assert (key.type == "section") is entry.endswith(".*"), entry


def test_every_entry_says_who_reads_it_or_why_nobody_does() -> None:
    for entry, fact in at_least_one(key_facts().items()):
        told = {Fate.OBEYED: fact.reader, Fate.CONDITIONAL: fact.reader and fact.when, Fate.AXIS: fact.axis}
        assert told.get(fact.fate, fact.why), entry
        assert fact.switch is None or fact.switch in known_keys().keys, entry


def test_readers_are_files_of_the_installed_deepspeed_and_torch() -> None:
    deepspeed, torch = package_folder("deepspeed"), package_folder("torch")
    assert deepspeed is not None
    assert torch is not None
    named = {word.strip(",;") for fact in key_facts().values() for word in fact.reader.split() if "/" in word}
    files = {word for word in named if not ((deepspeed / word).exists() or (torch.parent / word).exists())}
    beside = {word for word in files if not list((deepspeed / "runtime").rglob(Path(word).name))}
    assert beside == set()
    assert len(named) >= 15


@pytest.mark.parametrize("path", OBEYED)
def test_a_key_is_obeyed_by_some_trial_and_seen_in_what_its_record_says_that_deepspeed_made_of_it(path: str) -> None:
    trial = obeying(path)
    others = {key: value for key, value in trial.ds_config.items() if key != path}
    without = effective(build_ds_config(trial.model_copy(update={"ds_config": others})))
    new = {name: value for name, value in effective(build_ds_config(trial)).items() if without.get(name) != value}
    assert _as_text(sample(path)) in map(_as_text, new.values()), new


@pytest.mark.parametrize("path", [path for path in OBEYED if fact_of(path).fate is Fate.CONDITIONAL])
def test_a_key_is_refused_by_a_trial_in_which_deepspeed_does_not_read_it_with_the_condition(path: str) -> None:
    refused = [reason for trial in trials(ds_config={path: sample(path)}) if (reason := ds_config_refusal(trial))]
    assert refused
    for reason in set(refused):
        assert reason.startswith(f"ds_config: {path}: DeepSpeed reads it only ")
        assert fact_of(path).reader in reason


@pytest.mark.parametrize("path", REFUSED)
def test_a_key_that_no_trial_obeys_is_refused_by_every_trial_in_one_line_with_the_reason(path: str) -> None:
    fact = fact_of(path)
    for trial in at_least_one(trials(ds_config={path: sample(path)})):
        reason = ds_config_refusal(trial)
        assert reason is not None, trial
        assert reason.startswith(f"ds_config: {path}: ")
        assert (fact.why or fact.axis) in reason
        assert "\n" not in reason


def effective(config: dict[str, Any]) -> dict[str, Any]:
    """What a record says of the configuration after DeepSpeed parsed it, by full path; as for one process, no ranks."""
    logging.disable(logging.CRITICAL)
    try:
        from deepspeed.runtime.config import DeepSpeedConfig

        whole = config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"]
        found = parsed_config(DeepSpeedConfig(copy.deepcopy(config) | {"train_batch_size": whole}))
    finally:
        logging.disable(logging.NOTSET)
    return dict(leaves(json.loads(json.dumps(found))))


def _as_text(value: Any) -> str:
    """As a record has it: DeepSpeed's names of data types are torch's, and some words are in capitals."""
    names = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}
    return names.get(str(value), str(value)).lower()
