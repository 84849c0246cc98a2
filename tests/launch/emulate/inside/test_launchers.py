"""Launchers read by their own parsers: which script, which ranks, which environment; contradictions in one line."""

import re

import pytest

from tests.tools.refusals import one_line
from zerobench.common.errors import UserError
from zerobench.launch.emulate.inside.launchers import read_launch
from zerobench.launch.emulate.inside.script import Kind, Script
from zerobench.launch.emulate.part import Part


@pytest.fixture
def train(tmp_path, monkeypatch):
    """A script, and a folder without anybody's settings of accelerate."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    (tmp_path / "train.py").write_text("print()\n")
    return "train.py"


def part(command, world_size=8, per_node=8, rank=0):
    return Part(
        command=command,
        rank=rank,
        world_size=world_size,
        ranks_per_node=per_node,
        gpu="H200 SXM",
        host_memory_bytes=None,
        steps=3,
        account="account.json",
        under_ledger=False,
        speaks=True,
    )


def script_of(command, **layout):
    return read_launch(part(command, **layout)).script


@pytest.mark.parametrize(
    "command",
    [
        ["python", "train.py", "--lr", "1"],
        ["python3.11", "-u", "-X", "dev", "train.py", "--lr", "1"],
        ["/usr/bin/python3", "train.py", "--lr", "1"],
        ["torchrun", "--nproc-per-node", "8", "train.py", "--lr", "1"],
        ["torchrun", "--nproc_per_node=gpu", "--standalone", "train.py", "--lr", "1"],
        ["python", "-m", "torch.distributed.run", "--nnodes=1:1", "train.py", "--lr", "1"],
        ["torchrun", "--no-python", "python", "train.py", "--lr", "1"],
        ["deepspeed", "--no_local_rank", "--num_gpus", "8", "train.py", "--lr", "1"],
        ["deepspeed", "--no_local_rank", "--include", "localhost:0,1,2,3,4,5,6,7", "train.py", "--lr", "1"],
        ["./train.py", "--lr", "1"],
    ],
)
def test_the_script_and_its_arguments_are_found(train, command):
    script = script_of(command)
    assert (script.kind, script.target.removeprefix("./"), script.arguments) == (Kind.FILE, train, ("--lr", "1"))


def test_modules_are_scripts_too(train):
    assert script_of(["python", "-um", "pkg.train", "x"]) == Script(Kind.MODULE, "pkg.train", ("x",))
    assert script_of(["torchrun", "-m", "pkg.train", "x"]) == Script(Kind.MODULE, "pkg.train", ("x",))


def test_deepspeed_hands_each_rank_its_number_as_its_launcher_does(train):
    assert script_of(["deepspeed", train, "x"], world_size=16, rank=11).arguments == ("--local_rank=3", "x")


def test_accelerates_file_becomes_its_environment(train, tmp_path):
    (tmp_path / "fsdp.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\nnum_machines: 1\n"
        "num_processes: 8\nfsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: true\n"
    )
    launch = read_launch(part(["accelerate", "launch", "--config_file", "fsdp.yaml", train]))
    told = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "ACCELERATE_MIXED_PRECISION": "bf16"}
    assert told.items() <= launch.variables.items()
    assert launch.processes == ("--num_processes 8", 8)


def test_what_a_launchers_own_function_raises_is_one_line(train, monkeypatch):
    from accelerate.utils import launch as environments

    def without_fp8(args):
        raise RuntimeError("FP8 is not available\non this machine.")

    monkeypatch.setattr(environments, "prepare_multi_gpu_env", without_fp8)
    command = ["accelerate", "launch", "--multi_gpu", "--num_processes", "8", train]
    with pytest.raises(UserError, match=r"^COMMAND: accelerate launch: FP8 is not available on this machine\.$"):
        read_launch(part(command))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\nnum_machines: 1\nnum_processes: 8\n",
            "distributed_type NO starts 1 rank per node, and --gpus 8 is 8 per node; give --gpus 1",
        ),
        (
            "compute_environment: LOCAL_MACHINE\ndistributed_type: XLA\nnum_machines: 1\nnum_processes: 8\n",
            "configured for TPUs; nothing to emulate",
        ),
        (
            "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: NO\nec2_instance_type: any\niam_role_name: r\n",
            "COMMAND: accelerate launch: 'SageMakerConfig' object has no attribute",
        ),
    ],
)
def test_what_accelerates_file_does_not_start_on_these_gpus_is_refused(train, tmp_path, text: str, words: str):
    (tmp_path / "own.yaml").write_text(text)
    with pytest.raises(UserError, match=re.escape(words)):
        read_launch(part(["accelerate", "launch", "--config_file", "own.yaml", train]))


def test_accelerates_options_become_its_environment(train):
    command = ["accelerate", "launch", "--use_deepspeed", "--zero_stage", "3", "--num_processes", "8", train]
    launch = read_launch(part(command))
    assert launch.variables["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "3"
    assert launch.variables["ACCELERATE_USE_DEEPSPEED"] == "true"


@pytest.mark.parametrize(
    ("command", "layout", "says"),
    [
        (["torchrun", "--nproc-per-node", "16", "train.py"], {}, "a node has 8 GPUs"),
        (["torchrun", "--nproc-per-node", "4", "train.py"], {}, "give --gpus 4, or change the command"),
        (["torchrun", "--nproc-per-node", "4", "train.py"], {"world_size": 16}, "give --gpus-per-node 4"),
        (["torchrun", "--nnodes", "4", "train.py"], {}, "--nnodes 4 is 4 nodes, and --gpus 8 is 1 of 8 GPUs"),
        (["deepspeed", "--num_gpus", "9", "train.py"], {}, "--num_gpus 9 starts 9 ranks per node"),
        (["deepspeed", "--num_gpus", "2", "--include", "localhost:0", "train.py"], {}, "do not go with --include"),
        (["deepspeed", "--include", "localhost:0,1", "train.py"], {}, "starts 2 ranks per node"),
        (["accelerate", "launch", "--num_processes", "4", "--multi_gpu", "train.py"], {}, "starts 4 ranks per node"),
        (["torchrun", "--nproc-per-nod", "x", "train.py"], {}, "COMMAND: torchrun"),
        (["torchrun"], {}, "COMMAND: torchrun: error: the following arguments are required: training_script"),
        (["python"], {}, "python without a script"),
        (["python", "-c", "print()"], {}, "python -c is not supported; put the code into a file"),
        (["python", "missing.py"], {}, "COMMAND: missing.py: no such script"),
        (["bash", "train.sh"], {}, "'bash' is not a launcher that zerobench emulate supports; choices: deepspeed"),
        (["no_such_command"], {}, "'no_such_command' not found"),
        (["torchrun", "--no-python", "deepspeed", "train.py"], {}, "nested launchers are not supported"),
    ],
)
def test_what_cannot_be_played_is_one_clear_line(train, command, layout, says):
    with one_line(says, start="COMMAND: "):
        read_launch(part(command, **layout))


def test_the_nodes_of_a_hostfile_are_counted(train, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("one slots=8\ntwo slots=8\n")
    command = ["deepspeed", "--hostfile", str(hosts), train]
    assert read_launch(part(command, world_size=16)).nodes == (f"hostfile {hosts}", 2)
    with pytest.raises(UserError, match="is 2 nodes, and --gpus 8 is 1 of 8 GPUs"):
        read_launch(part(command))
