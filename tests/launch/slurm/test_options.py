"""What `zerobench submit` may be asked for, and what each mistake is told."""

import pytest

from tests.tools.refusals import one_line
from zerobench.common.errors import UserError
from zerobench.config.derived.machine import Accelerator
from zerobench.config.sweep.expand import expand
from zerobench.config.sweep.sweep import load_sweep
from zerobench.launch.slurm.options import (
    UNKNOWN_CORES,
    SubmitOptions,
    cluster_machine,
    read_extra,
    read_options,
    read_time,
    time_text,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("1:30", 90),
        ("1:30:00", 5400),
        ("2-0", 172800),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("0-0:0:61", 61),
    ],
)
def test_a_time_limit_is_read_as_sbatch_reads_it(text: str, seconds: int) -> None:
    assert read_time(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "an hour", "1h", "-5", "1:2:3:4", "infinite", "1-1:1:1:1"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--time"):
        read_time(text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(1, "00:01:00"), (5400, "01:30:00"), (5401, "01:31:00"), (3 * 86400 + 60, "3-00:01:00")]
)
def test_a_time_limit_is_written_in_whole_minutes(seconds: int, text: str) -> None:
    assert time_text(seconds) == text
    assert read_time(text) >= seconds


def test_other_options_of_sbatch_are_taken_with_and_without_a_value() -> None:
    options = SubmitOptions(sbatch=("comment=a=b", "--overcommit", "exclude="))
    assert options.extra == {"comment": "a=b", "overcommit": True, "exclude": ""}


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("nodes=9", "use --nodes"),
        ("time=9", "use --time"),
        ("output=/tmp/x", "zerobench sets it itself"),
        ("x; touch y", "is not an option"),
        ("=5", "is not an option"),
        ("export=ALL,TOKEN=1234", "secret"),
    ],
)
def test_an_option_of_sbatch_that_would_break_a_job_is_refused(word: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        read_extra(word)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"gpu": "h2000"}, "--gpu: 'h2000' is not in the hardware catalogue"),
        ({"time": "soon"}, "--time: 'soon' is not a time"),
        ({"launcher": "mpirun"}, "--launcher: Input should be 'srun', 'deepspeed'"),
        ({"launcher": "local"}, "--launcher: 'local' is not known; choices: srun, deepspeed"),
        ({"container_runtime": "docker"}, "--container-runtime: Input should be"),
        ({"sbatch": ["wrap=x"]}, "--sbatch: wrap: zerobench sets it itself"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_option(given: dict[str, object], told: str) -> None:
    with one_line(start=told):
        read_options(given)


def test_what_was_not_said_is_the_usual() -> None:
    assert read_options({"nodes": None, "sbatch": [], "gpus_per_node": 0}) == SubmitOptions(gpus_per_node=0)


def test_the_plan_is_made_for_the_cluster_and_not_for_this_machine() -> None:
    machine = cluster_machine(SubmitOptions(nodes=4, gpus_per_node=8, gpu="h100 sxm"))
    assert (machine.accelerator, machine.num_nodes, machine.num_gpus) == (Accelerator.CUDA, 4, 8)
    assert machine.device_memory_bytes is not None
    sweep = load_sweep("zero-stages", ["world_size=auto", "strategy=zero1,zero3", "optimizer=adamw,fused_adamw"])
    planned = expand(sweep, machine)
    assert [item.skipped for item in planned] == [None] * 8
    assert {item.trial.num_nodes for item in planned} == {4}


def test_nodes_without_gpus_get_two_cpu_ranks_each() -> None:
    machine = cluster_machine(SubmitOptions(nodes=2, gpus_per_node=0))
    assert machine.cpu_cores == UNKNOWN_CORES
    planned = expand(load_sweep("quickstart", only=["strategy=zero2"]), machine)
    assert [(item.trial.num_nodes, item.trial.gpus_per_node, item.skipped) for item in planned] == [(2, 2, None)]


def test_nobody_guesses_the_gpus_of_a_node() -> None:
    with pytest.raises(UserError, match="--gpus-per-node is missing"):
        cluster_machine(SubmitOptions())
