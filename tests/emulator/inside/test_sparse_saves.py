"""What is saved on an emulated GPU takes no disk for zeros, and reads back as it was."""

import inspect
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch

from zerobench.emulator.inside.sparse_saves import save_sparsely, serialize_sparsely

KEPT = {
    "zeros": torch.zeros(8 << 20),
    "some": torch.arange(1000),
    "last": torch.zeros(8 << 20),
    "yes": torch.ones(3) > 0,
}
SIZE = 2 * 32 << 20


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Torch and safetensors save sparsely; the sizes that were told."""
    sizes: list[int] = []
    monkeypatch.setattr(torch, "save", torch.save)  # put back at the end
    monkeypatch.setattr(safetensors, "serialize_file", safetensors.serialize_file)
    save_sparsely(torch, sizes.append)
    serialize_sparsely(safetensors, sizes.append)
    monkeypatch.setattr(
        safetensors.torch, "serialize_file", safetensors.serialize_file
    )  # imported after it in a script
    return sizes


def check_on_disk(path: Path, told: list[int]) -> None:
    written = path.stat()
    assert written.st_size > SIZE
    assert written.st_blocks * 512 < 4 << 20
    assert sum(told) == written.st_size


@pytest.mark.parametrize("zipped", [True, False])
def test_zeros_take_no_disk_and_everything_reads_back(tmp_path: Path, told: list[int], zipped: bool) -> None:
    torch.save(KEPT, tmp_path / "kept.pt", _use_new_zipfile_serialization=zipped)
    check_on_disk(tmp_path / "kept.pt", told)
    read = torch.load(tmp_path / "kept.pt", weights_only=True)
    assert all(torch.equal(read[name], tensor) for name, tensor in KEPT.items())


@pytest.mark.parametrize("zipped", [True, False])
def test_so_it_is_in_a_file_that_the_script_opened(tmp_path: Path, told: list[int], zipped: bool) -> None:
    path = tmp_path / "kept.pt"
    with path.open("wb") as file:
        file.write(b"before")
        torch.save(KEPT, file, _use_new_zipfile_serialization=zipped)
        file.write(b"after")
    assert path.stat().st_blocks * 512 < 4 << 20
    assert path.read_bytes()[:6] == b"before"
    assert path.read_bytes()[-5:] == b"after"
    assert sum(told) == path.stat().st_size - 11 > SIZE
    (tmp_path / "cut.pt").write_bytes(path.read_bytes()[6:-5])
    read = torch.load(tmp_path / "cut.pt", weights_only=True)
    assert all(torch.equal(read[name], tensor) for name, tensor in KEPT.items())


def test_what_is_appended_or_kept_in_memory_is_written_as_it_comes(tmp_path: Path, told: list[int]) -> None:
    with (tmp_path / "kept.pt").open("ab") as file:
        torch.save({"one": torch.ones(3)}, file)
    assert torch.equal(torch.load(tmp_path / "kept.pt")["one"], torch.ones(3))
    assert told == []


def test_safetensors_are_what_safetensors_itself_writes(
    tmp_path: Path, told: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    safetensors.torch.save_file(KEPT, tmp_path / "kept.safetensors", metadata={"format": "pt"})
    check_on_disk(tmp_path / "kept.safetensors", told)
    monkeypatch.setattr(safetensors.torch, "serialize_file", inspect.unwrap(safetensors.serialize_file))
    safetensors.torch.save_file(KEPT, tmp_path / "real.safetensors", metadata={"format": "pt"})
    real = (tmp_path / "real.safetensors").read_bytes()
    assert (tmp_path / "kept.safetensors").read_bytes() == real


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("elements", [1 << 18, (1 << 18) + 1, 3 << 18, 5])
def test_zeros_at_the_end_of_a_file_are_there(tmp_path: Path, told: list[int], zipped: bool, elements: int) -> None:
    """Whole mebibytes of them are never written, and the file is as long as if they were."""
    path, plain = tmp_path / "kept.pt", tmp_path / "plain.pt"
    torch.save({"last": torch.zeros(elements)}, path, _use_new_zipfile_serialization=zipped)
    inspect.unwrap(torch.save)({"last": torch.zeros(elements)}, plain, _use_new_zipfile_serialization=zipped)
    assert told == [path.stat().st_size]
    assert path.stat().st_size >= 4 * elements
    assert abs(path.stat().st_size - plain.stat().st_size) < 512  # the folder's name in a zip
    assert torch.equal(torch.load(path, weights_only=True)["last"], torch.zeros(elements))


def test_a_file_that_was_longer_is_as_long_as_what_is_saved(tmp_path: Path, told: list[int]) -> None:
    path = tmp_path / "kept.pt"
    path.write_bytes(b"x" * (4 << 20))
    torch.save({"one": torch.ones(3)}, path)
    assert told == [path.stat().st_size]
    assert path.stat().st_size < 1 << 20


def test_a_file_that_is_open_for_reading_too_is_written_as_it_comes(tmp_path: Path, told: list[int]) -> None:
    path = tmp_path / "kept.pt"
    path.write_bytes(b"x" * (4 << 20))
    with path.open("r+b") as file:
        file.seek(100)
        torch.save({"one": torch.ones(3)}, file)
        end = file.tell()
    assert told == []
    assert path.stat().st_size == 4 << 20
    assert path.read_bytes()[end:] == b"x" * ((4 << 20) - end)
