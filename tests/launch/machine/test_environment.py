"""environment.json: what it holds of a machine, and that no secret gets into it."""

import json
import os
import random
import shutil
import string
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import psutil
import pytest

import zerobench
from tests.nvml_standin.standin import CHECKOUT, Standin, uuid
from zerobench.common import control_groups
from zerobench.launch.machine.environment import git_commit, machine
from zerobench.launch.machine.variables import safe_value

GIB = 2**30


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_this_machine_is_told_as_the_kernel_knows_it() -> None:
    found = machine()
    assert found["memory_bytes"] == psutil.virtual_memory().total
    assert found["cpu"]["usable_cores"] == len(os.sched_getaffinity(0))
    assert found["kernel"] == os.uname().release
    assert found["cpu"]["model"]


def test_a_job_in_nested_groups_of_version_2_has_the_smallest_limit(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/slurm/job_7/step_0\n",
            "sys/fs/cgroup/slurm/job_7/step_0/memory.max": "max\n",
            "sys/fs/cgroup/slurm/job_7/step_0/cpu.max": "max 100000\n",
            "sys/fs/cgroup/slurm/job_7/memory.max": f"{64 * GIB}\n",
            "sys/fs/cgroup/slurm/job_7/cpu.max": "250000 100000\n",
            "sys/fs/cgroup/slurm/memory.max": f"{512 * GIB}\n",
        },
    )
    assert (control_groups.memory_limit_bytes(root), control_groups.cores(root)) == (64 * GIB, 2.5)


def test_a_container_of_version_1_has_its_limits_at_the_mount(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{8 * GIB}\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert (control_groups.memory_limit_bytes(root), control_groups.cores(root)) == (8 * GIB, 4.0)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/cpu.max": "max 100000\n"},
        {
            "proc/self/cgroup": "4:memory:/\n3:cpu,cpuacct:/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    ],
)
def test_no_limit_is_none(tmp_path: Path, files: dict[str, str]) -> None:
    root = tree(tmp_path, files)
    assert (control_groups.memory_limit_bytes(root), control_groups.cores(root)) == (None, None)


def test_numa_nodes_have_their_cores_and_memory_in_order(tmp_path: Path) -> None:
    node = "sys/devices/system/node/node"
    root = tree(
        tmp_path,
        {
            "proc/cpuinfo": "processor : 0\nmodel name\t: AMD EPYC 9654\nmodel name\t: AMD EPYC 9654\n",
            f"{node}0/cpulist": "0-15\n",
            f"{node}0/meminfo": "Node 0 MemTotal:       1024 kB\nNode 0 MemFree: 1 kB\n",
            f"{node}10/cpulist": "32-47\n",
            f"{node}2/cpulist": "16-31\n",
            f"{node}2/meminfo": "Node 2 MemTotal:       2048 kB\n",
            ".dockerenv": "",
        },
    )
    found = machine(root)
    assert found["numa_nodes"] == [
        {"node": 0, "cores": "0-15", "memory_bytes": 1024 * 1024},
        {"node": 2, "cores": "16-31", "memory_bytes": 2048 * 1024},
        {"node": 10, "cores": "32-47", "memory_bytes": None},
    ]
    assert found["cpu"]["model"] == "AMD EPYC 9654"
    assert found["limits"]["container"] == "docker"


def test_a_kernel_that_shows_nothing_gives_none(tmp_path: Path) -> None:
    found = machine(tmp_path)
    assert (found["numa_nodes"], found["cpu"]["sockets"], found["limits"]["container"]) == (None, None, None)


CAPTURE = """
    import json, sys
    from zerobench.launch.machine.environment import capture_environment
    environment = capture_environment()
    environment["modules"] = sorted(sys.modules)
    print(json.dumps(environment))
"""


def capture(folder: Path, environ: dict[str, str]) -> str:
    """environment.json as a process in `folder` with the variables `environ` writes it."""
    code = (
        "import json; from zerobench.launch.machine.environment import capture_environment as c; print(json.dumps(c()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)} | environ,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout.strip()


def checkout(folder: Path) -> str:
    """Make `folder` a checkout with one commit; its name."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q")
    (folder / "file").write_text("1")
    git(folder, "add", "file")
    git(folder, "commit", "-qm", "first")
    return git(folder, "rev-parse", "HEAD")


def test_gpus_driver_and_links_are_written_and_nothing_heavy_is_imported(standin: Standin) -> None:
    found = standin.run(CAPTURE, "gpus 8 name=NVIDIA_H200\ndriver 580.159.03\ncuda 13000")
    assert found["driver"] == {"version": "580.159.03", "cuda_version": "13.0", "reason": None, "faults": []}
    assert [(gpu["uuid"], gpu["name"]) for gpu in found["gpus"]] == [(uuid(i), "NVIDIA H200") for i in range(8)]
    assert found["gpus"][0]["total_bytes"] == 85520809984
    assert found["gpus"][1]["pci_bus_id"] == "00000000:0F:00.0"
    assert len(found["topology"]) == 28
    assert (found["topology"][0]["nvlinks"], found["topology"][0]["through"]) == (18, "nvswitch")
    assert not {"torch", "deepspeed", "transformers", "pandas", "rich"} & set(found["modules"])


def test_without_a_driver_the_reason_stands_in_the_gpus_place(standin: Standin) -> None:
    found = standin.run(CAPTURE, "", "broken")
    assert (found["gpus"], found["topology"], found["driver"]["version"]) == ([], [], None)
    assert "libnvidia-ml.so.1 not found" in found["driver"]["reason"]


def test_versions_are_those_of_the_installed_packages(tmp_path: Path) -> None:
    versions = json.loads(capture(tmp_path, {}))["versions"]
    assert versions["zerobench"] == zerobench.__version__
    assert versions["python"] == sys.version.split()[0]
    for name in ("torch", "deepspeed", "transformers", "nvidia-ml-py"):
        assert versions[name] == metadata.version(name)
    assert versions.get("flash-attn", "absent") == _version_or_none("flash-attn")


def _version_or_none(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


@pytest.mark.parametrize("line", ["cuda: Optional[str] = '13.0'", 'cuda = "13.0"'])
def test_the_cuda_that_torch_was_built_for_is_read_without_importing_torch(tmp_path: Path, line: str) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('torch was imported')")
    (tmp_path / "torch" / "version.py").write_text(f"{line}\nhip: Optional[str] = None\ngit_version = 'abc'\n")
    info = tmp_path / "torch-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9\n")
    nccl = tmp_path / "nvidia_nccl_cu13-2.28.9.dist-info"
    nccl.mkdir()
    (nccl / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-nccl-cu13\nVersion: 2.28.9\n")
    found = json.loads(capture(tmp_path, {"PYTHONPATH": f"{tmp_path}{os.pathsep}{CHECKOUT}"}))
    assert found["torch_build"] == {"cuda": "13.0", "hip": None, "git_version": "abc"}
    assert (found["versions"]["torch"], found["versions"]["nvidia-nccl-cu13"]) == ("9.9", "2.28.9")


def test_a_checkout_is_dirty_when_a_tracked_file_differs(tmp_path: Path) -> None:
    folder = tmp_path / "checkout"
    commit = checkout(folder)
    (folder / "untracked").write_text("1")
    assert git_commit(folder) == {"commit": commit, "dirty": False}
    (folder / "file").write_text("2")
    assert git_commit(folder) == {"commit": commit, "dirty": True}
    assert git_commit(tmp_path) is None


def test_the_commit_is_that_of_the_folder_although_a_hook_points_git_elsewhere(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    commit, _ = checkout(mine), checkout(other)
    (other / "file").write_text("2")
    git(other, "commit", "-qam", "second")
    found = json.loads(capture(mine, {"GIT_DIR": str(other / ".git"), "GIT_WORK_TREE": str(other)}))
    assert found["git"]["cwd"] == {"commit": commit, "dirty": False}


def test_an_installed_package_has_no_commit_although_its_virtual_environment_lies_in_a_checkout(tmp_path: Path) -> None:
    commit = checkout(tmp_path)
    site = tmp_path / "venv" / "site-packages"
    package = Path(zerobench.__file__).parent
    shutil.copytree(package, site / "zerobench", ignore=shutil.ignore_patterns("__pycache__"))
    found = json.loads(capture(tmp_path, {"PYTHONPATH": str(site)}))
    assert found["git"] == {"zerobench": None, "cwd": {"commit": commit, "dirty": False}}


# Where secrets were met: in names, in URLs, in options, in JSON, bare, and in what nobody asked for.
SECRETS: dict[str, tuple[str, str]] = {
    "HF_TOKEN": ("{}", "hf_abcdefghijklmnopqrstuvwxyz0123"),
    "AWS_SECRET_ACCESS_KEY": ("{}", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzzz"),
    "WANDB_API_KEY": ("{}", "0123456789abcdef0123456789abcdef01234567"),
    "NCCL_TOKEN": ("{}", "plainword"),
    "NCCL_AUTH": ("{}", "opensesame"),
    "DS_PASSWORD": ("{}", "correct horse"),
    "DS_ACCESS_KEY": ("{}", "AKIAIOSFODNN7ABCDEFG"),
    "MALLOC_CREDENTIALS": ("{}", "me"),
    "NCCL_PRIVATE_THING": ("{}", "hidden thing"),
    "NCCL_PROXY": ("https://user:{}@proxy:8080/x", "hunter2"),
    "NCCL_PROXY_2": ("https://{}@proxy:8080/x", "gho"),
    "NCCL_PROXY_3": ("http://u:{}@proxy/x", "p@ss/w0rd@home"),
    "NCCL_HOST": ("admin:{}@node7:22", "s3same"),
    "NCCL_OPTIONS": ("--rate 5 --password {} --x", "swordfish"),
    "NCCL_OPTIONS_2": ("rate=5;pwd={};x=1", "tiger"),
    "NCCL_OPTIONS_3": ('{{"api_key": "{}"}}', "letmein"),
    "NCCL_QUERY": ("https://store/x?sig=1&access_token={}", "qwerty"),
    "NCCL_HEADER": ("Authorization: Bearer {}", "abc.def.ghi"),
    "NCCL_HEADER_2": ("Cookie: session={}", "monster"),
    "NCCL_A": ("{}", "ghp_16C7e42F292c6912E7710c838347Ae178B4a"),
    "NCCL_B": ("x {} y", "AKIAIOSFODNN7EXAMPLE"),
    "NCCL_C": ("{}", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln"),
    "NCCL_D": ("{}", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEQQQ"),
    "NCCL_E": ("{}", "/9j4AAQSkZJRgABAQEASABIAAD2wBDAAYEBQYFBAYG"),
    "NCCL_F": ("{}", "d41d8cd98f00b204e9800998ecf8427e"),
    "NCCL_G": ("{}", "7c9e6679-7425-40de-944b-e07fc1f90ae7"),
    "NCCL_H": ("{}", "sk-proj-abcdefgh"),
    "NCCL_I": ("{}", "Xk92mPq7zR"),
    "NCCL_J": ("-----BEGIN OPENSSH\n{}\n", "b3BlbnNzaC1r"),
    "PYTORCH_CUDA_ALLOC_CONF": ("max_split_size_mb:512,{}", "glpat-abcdefgh"),
    "CUDA_VISIBLE_DEVICES": ("{}", "xoxb-abcdefgh"),
    "LD_PRELOAD": ("/usr/lib/x.so:{}", "0123456789abcdefABCDEF"),
    "SLURM_JOB_ID": ("{}", "AIzaSyabcdefgh"),
    "OMP_NUM_THREADS": ("{}", "Zm9vYmFyYmF6cXV4cXV1eA=="),
    "MY_NCCL_DEBUG": ("{}", "not on the list"),
    "nccl_debug": ("{}", "not on the list either"),
}


def test_no_secret_gets_in_whatever_form_it_has(tmp_path: Path) -> None:
    folder = tmp_path / "checkout"
    checkout(folder)
    git(folder, "remote", "add", "origin", "https://bot:remotesecret@example.com/x.git")
    git(folder, "config", "http.extraHeader", "X: configsecret")
    planted = {name: pattern.format(secret) for name, (pattern, secret) in SECRETS.items()}
    written = capture(folder, planted)
    needles = [secret for _, secret in SECRETS.values()] + ["remotesecret", "configsecret"]
    # JSON writes some characters in another way; the needles are looked for as JSON would write them, too.
    leaked = [needle for needle in needles if needle in written or json.dumps(needle)[1:-1] in written]
    leaked.remove("me")  # a word of two letters is in every text; its variable is looked at by name
    kept: dict[str, str] = json.loads(written)["variables"]
    assert leaked == []
    assert kept["MALLOC_CREDENTIALS"] == "(not kept: it may hold a secret)"
    assert kept["NCCL_PROXY"] == kept["NCCL_PROXY_2"] == "https://proxy:8080/x"
    assert not {"HF_TOKEN", "MY_NCCL_DEBUG", "nccl_debug"} & set(kept)


def test_random_secrets_never_get_in() -> None:
    generator = random.Random(0)  # noqa: S311 - a fixed seed, so that a failure comes again
    alphabets = (
        "0123456789abcdef",
        string.ascii_letters + string.digits,
        string.ascii_letters + string.digits + "+/",
        string.ascii_letters + string.digits + "-_",
    )
    secrets = [
        "".join(generator.choices(letters, k=length))
        for letters in alphabets
        for length in (20, 32, 40, 64)
        for _ in range(300)
    ]
    kept = [secret for secret in secrets if secret in safe_value("NCCL_X", f"a={secret},b")]
    assert kept == []


def test_what_matters_is_kept_as_it_is(tmp_path: Path) -> None:
    plain = {
        "CUDA_VISIBLE_DEVICES": f"{uuid(0)},{uuid(1)}",
        "NVIDIA_VISIBLE_DEVICES": "MIG-aaaaaaaa-0000-4000-8000-000000000000",
        "NCCL_SOCKET_IFNAME": "eth0,enp65s0f0np0,ibp12s0",
        "NCCL_IB_HCA": "mlx5_0:1,mlx5_1:1",
        "NCCL_DEBUG": "INFO",
        "NCCL_TOPO_FILE": "/usr/share/nccl/topology.xml",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512,expandable_segments:True,garbage_collection_threshold:0.8",
        "PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync",
        "OMP_NUM_THREADS": "8",
        "DS_SKIP_CUDA_CHECK": "1",
        "DS_BUILD_OPS": "0",
        "SLURM_JOB_ID": "1234567",
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "LD_PRELOAD": "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4",
        "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=65536:glibc.malloc.trim_threshold=65536",
    }
    kept = json.loads(capture(tmp_path, plain))["variables"]
    assert {name: kept.get(name) for name in plain} == plain
