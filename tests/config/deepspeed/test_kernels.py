"""Which of DeepSpeed's kernels a configuration loads, and which of them must be compiled."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from zerobench.config.deepspeed.kernels import ARCHITECTURES, BUILDERS, missing, name_architectures, needed, touch
from zerobench.config.hardware.toolchain import package_folder

ADAM = {"optimizer": {"type": "AdamW"}}


@pytest.mark.parametrize(
    ("config", "is_cuda", "names"),
    [
        ({}, False, []),
        (ADAM, False, ["deepspeed_shm_comm", "fused_adam"]),
        (ADAM, True, ["fused_adam"]),
        ({"optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}, True, []),
        ({"optimizer": {"type": "SGD"}}, True, []),
        (ADAM | {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, True, ["cpu_adam"]),
        (ADAM | {"zero_optimization": {"offload_optimizer": {"device": "nvme"}}}, True, ["cpu_adam", "async_io"]),
        (ADAM | {"zero_optimization": {"zero_quantized_weights": True}}, True, ["fused_adam", "quantizer"]),
    ],
)
def test_an_engine_needs_the_kernels_of_its_optimizer_its_offload_and_its_device(
    config: dict[str, Any], is_cuda: bool, names: list[str]
) -> None:
    assert needed(config, is_cuda=is_cuda) == names
    assert set(names) <= BUILDERS.keys()


def test_a_kernel_is_missing_until_it_is_compiled_for_this_python(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    root = tmp_path / ".cache" / "torch_extensions"
    put(root / "py27_cpu" / "cpu_adam" / "cpu_adam.so")
    assert missing(["cpu_adam"], environ) == ["cpu_adam"]
    put(root / f"py{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}_cpu" / "cpu_adam" / "cpu_adam.so")
    assert missing(["cpu_adam", "fused_adam"], environ) == ["fused_adam"]


def test_a_kernel_older_than_the_packages_is_missing_until_it_was_found_to_do(tmp_path: Path) -> None:
    environ = {"TORCH_EXTENSIONS_DIR": str(tmp_path)}
    path = put(tmp_path / "cpu_adam" / "cpu_adam.so")
    assert missing(["cpu_adam"], environ) == []
    os.utime(path, (1e9, 1e9))
    assert missing(["cpu_adam"], environ) == ["cpu_adam"]
    touch("cpu_adam", environ)
    assert missing(["cpu_adam"], environ) == []


def test_a_kernel_that_another_environment_compiled_is_missing(tmp_path: Path) -> None:
    environ = {"TORCH_EXTENSIONS_DIR": str(tmp_path)}
    build = put(tmp_path / "cpu_adam" / "cpu_adam.so").with_name("build.ninja")
    for torch, is_missing in ((package_folder("torch"), False), (f"/elsewhere{package_folder('torch')}", True)):
        build.write_text(f"cflags = -isystem {torch}/include -O3\n", encoding="utf-8")
        assert missing(["cpu_adam"], environ) == ["cpu_adam"] * is_missing


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ("9.0a", "9.0"),
        ("9.0a+PTX", "9.0+PTX"),
        ("8.0 9.0a;10.0f", "8.0;9.0;10.0"),
        ("9.0;9.0a", "9.0"),
        ("8.0;9.0+PTX", None),
        ("Hopper", None),
        ("", None),
    ],
)
def test_architectures_are_named_without_letters_which_is_said(asked: str, named: str | None) -> None:
    environ = {ARCHITECTURES: asked}
    notes = name_architectures(environ)
    assert environ == {ARCHITECTURES: asked if named is None else named}
    changed = f"{ARCHITECTURES} is {asked}, which DeepSpeed's builder cannot read: its kernels are compiled for {named}"
    assert notes == [changed] * (named is not None)
    assert name_architectures({}) == []


def put(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    path.touch()
    return path
