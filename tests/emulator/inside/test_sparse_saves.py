"""What torch.save writes on an emulated GPU takes no disk for zeros, and reads back as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from zerobench.emulator.inside.sparse_saves import save_sparsely


@pytest.mark.parametrize("zipped", [True, False])
def test_zeros_take_no_disk_and_everything_reads_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zipped: bool
) -> None:
    monkeypatch.setattr(torch, "save", torch.save)  # put back at the end
    save_sparsely()
    kept = {"zeros": torch.zeros(8 << 20), "some": torch.arange(1000), "last": torch.zeros(8 << 20)}
    torch.save(kept, tmp_path / "kept.pt", _use_new_zipfile_serialization=zipped)
    written = (tmp_path / "kept.pt").stat()
    assert written.st_size > 2 * 32 << 20
    assert (written.st_blocks * 512 < 8 << 20) is zipped  # the older format writes past Python
    read = torch.load(tmp_path / "kept.pt", weights_only=True)
    assert all(torch.equal(read[name], tensor) for name, tensor in kept.items())
