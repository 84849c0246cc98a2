"""Weights & Biases' offline files, read back by wandb's own reader; nothing leaves the machine."""

import importlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.report.export.conftest import HOSTILE
from zerobench.report.export.exported import ExportRow
from zerobench.report.export.wandb_runs import write_wandb

pytest.importorskip("wandb")


@pytest.fixture(scope="module")
def folder(exported: list[ExportRow], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("wandb")
    known = dict(os.environ)
    os.environ |= {"WANDB_MODE": "offline", "WANDB_CACHE_DIR": str(path), "WANDB_CONFIG_DIR": str(path)}
    try:
        assert write_wandb([exported[0], exported[2], exported[4]], "zerobench", path) == 3
        yield path
    finally:
        os.environ.clear()
        os.environ.update(known)


def records(path: Path) -> list[Any]:
    proto = importlib.import_module("wandb.proto.wandb_internal_pb2")
    store, found = importlib.import_module("wandb.sdk.internal.datastore").DataStore(), []
    store.open_for_scan(str(path))
    while (data := store.scan_data()) is not None:
        record = proto.Record()
        record.ParseFromString(data)
        found.append(record)
    return found


def runs(folder: Path) -> dict[str, list[Any]]:
    """The records of each run, by its status."""
    found = {}
    for path in sorted(folder.rglob("*.wandb")):
        read = records(path)
        run = next(record.run for record in read if record.HasField("run"))
        config = {item.key: json.loads(item.value_json) for item in run.config.update}
        found[config["model"] + "/" + config["strategy"]] = read
    return found


def test_config_curves_and_summary_come_back(folder: Path, exported: list[ExportRow]) -> None:
    read, trial = runs(folder)["gpt2-345m/zero1"], exported[0]
    run = next(record.run for record in read if record.HasField("run"))
    assert (run.project, run.run_group, run.display_name) == ("zerobench", trial.trial.run_id, trial.trial.label)
    assert list(run.tags) == ["measured", "completed"]
    losses = [
        json.loads(item.value_json)
        for record in read
        if record.HasField("history")
        for item in record.history.item
        if [item.key, *item.nested_key][-1] == "loss"
    ]
    assert losses == [point.loss for point in trial.steps]
    summary = {
        item.key or "/".join(item.nested_key): json.loads(item.value_json)
        for record in read
        if record.HasField("summary")
        for item in record.summary.update
    }
    figures = {figure.tag: value for figure, value in trial.figures.items()}
    assert {name: summary[name] for name in figures} == figures
    assert summary["device_peak_bytes/parameters"] > 0


def test_a_failed_trial_is_a_failed_run(folder: Path) -> None:
    read = runs(folder)["gpt2-345m/zero0"]
    assert [record.exit.exit_code for record in read if record.HasField("exit")] == [1]


def test_a_hostile_name_is_a_value(folder: Path) -> None:
    assert HOSTILE + "/zero3" in runs(folder)


def test_nothing_of_the_exporting_process_is_sent(folder: Path) -> None:
    files = {path.name for path in folder.rglob("files/*")}
    assert not {"requirements.txt", "wandb-metadata.json", "output.log", "diff.patch"} & files
    assert not [record for read in runs(folder).values() for record in read if record.HasField("stats")]
