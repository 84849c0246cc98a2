"""Ranks of a user's own job agree on their nodes: apart where hostnames are shared, together where nothing is said."""

import json
import multiprocessing
import os
from pathlib import Path

import pytest
import torch.distributed as dist

from zerobench.launch.tracking.agreement import agree, launcher_node
from zerobench.records.folder import TrialFolder
from zerobench.records.progress import Rank
from zerobench.records.records import NvmlSummary

Spot = tuple[str, int]
"""The hostname of a rank and what its launcher says of its node."""


@pytest.mark.parametrize(
    ("environ", "node"),
    [
        ({"GROUP_RANK": "3", "RANK": "7", "LOCAL_WORLD_SIZE": "2"}, 3),  # torchrun
        ({"CROSS_RANK": "2", "RANK": "5", "LOCAL_SIZE": "2"}, 2),  # deepspeed
        ({"SLURM_NODEID": "1", "RANK": "3"}, 1),  # srun
        ({"RANK": "5", "LOCAL_WORLD_SIZE": "2"}, 2),
        ({"RANK": "5"}, 0),
        ({"RANK": "5", "LOCAL_WORLD_SIZE": "0", "GROUP_RANK": "?"}, 0),
        ({}, 0),
    ],
)
def test_a_node_is_what_the_launcher_says(environ: dict[str, str], node: int) -> None:
    assert launcher_node(environ) == node


def _agree_as(rank: int, spots: list[Spot], folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=len(spots))
    hostname, said = spots[rank]
    agreed = agree(Rank(rank, 0, len(spots), hostname, os.getpid(), said), lambda: TrialFolder(folder))
    told = [agreed.node, agreed.is_first_of_node, agreed.ranks_per_node]
    (folder / f"said_{rank}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


def agreed_nodes(folder: Path, spots: list[Spot]) -> tuple[list[int], list[int], set[int]]:
    """The node of each rank, the ranks that are the first of theirs, and the ranks per node."""
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_agree_as, args=(rank, spots, folder)) for rank in range(len(spots))]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
    assert [process.exitcode for process in ranks] == [0] * len(spots)
    told = [json.loads((folder / f"said_{rank}.json").read_bytes()) for rank in range(len(spots))]
    firsts = [rank for rank, (_, is_first, _) in enumerate(told) if is_first]
    return [node for node, _, _ in told], firsts, {per_node for _, _, per_node in told}


@pytest.mark.parametrize(
    ("spots", "nodes", "firsts"),
    [
        ([("same", 0), ("same", 0), ("same", 1), ("same", 1)], [0, 0, 1, 1], [0, 2]),  # the launcher tells them apart
        ([("a", 0), ("b", 0), ("a", 0), ("b", 0)], [0, 1, 0, 1], [0, 1]),  # the hostnames do
    ],
)
def test_nodes_are_told_apart_by_either_hostname_or_launcher(
    tmp_path: Path, spots: list[Spot], nodes: list[int], firsts: list[int]
) -> None:
    assert agreed_nodes(tmp_path, spots) == (nodes, firsts, {2})


def test_a_node_has_as_many_ranks_as_the_fullest_one(tmp_path: Path) -> None:
    assert agreed_nodes(tmp_path, [("a", 0), ("a", 0), ("b", 1)])[2] == {2}


@pytest.mark.parametrize(("watched_on", "nodes"), [("b", [1, 0]), ("login", [1, 2])])
def test_the_watchers_node_keeps_the_index_under_which_its_sampler_writes(
    tmp_path: Path, watched_on: str, nodes: list[int]
) -> None:
    summary = NvmlSummary(hostname=watched_on, node=0, available=False)
    TrialFolder(tmp_path).nvml_summary(0).write_text(summary.model_dump_json())
    assert agreed_nodes(tmp_path, [("a", 0), ("b", 1)])[0] == nodes


def test_a_job_of_one_rank_is_on_node_0_and_starts_its_sampler(tmp_path: Path) -> None:
    agreed = agree(Rank(0, 0, 1, "here", 1, 5), lambda: TrialFolder(tmp_path))
    assert (agreed.node, agreed.is_first_of_node, agreed.ranks_per_node) == (0, True, 1)
