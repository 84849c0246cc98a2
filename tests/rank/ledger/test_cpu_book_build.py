"""The book is compiled once for each version of torch, and where it cannot be, the reason is said."""

import pytest

from tests.rank.ledger.test_ledger import Trained
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.rank.ledger import cpu_book
from zerobench.rank.ledger.cpu_book_build import NoBookError, library


def test_it_is_compiled_once_into_torchs_extension_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    path = library()
    assert path.is_relative_to(tmp_path)
    assert list(path.parent.iterdir()) == [path]
    made_at = path.stat().st_mtime_ns
    assert library() == path
    assert path.stat().st_mtime_ns == made_at


SAYS_WHY = "#!/bin/sh\necho 'in file a.cpp' >&2\necho 'fatal error: no such header' >&2\nexit 1\n"


@pytest.mark.parametrize(
    ("compiler", "why"),
    [("/no/such", "No such file"), ("false", "exit status 1"), ("", "fatal error: no such header$")],
)
def test_without_a_compiler_that_works_the_reason_is_said_each_time(tmp_path, monkeypatch, compiler, why):
    script = tmp_path / "compiler"
    script.write_text(SAYS_WHY, encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", compiler or str(script))
    for _ in range(2):  # the folder is there already
        with pytest.raises(NoBookError, match=f"{compiler or script}: .*{why}"):
            library()


def test_without_a_book_the_ledger_counts_tensors_and_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "/no/such/compiler")
    cpu_book._book.cache_clear()
    try:
        run = Trained()
        run.train(StepKind.STEADY)
    finally:
        cpu_book._book.cache_clear()
    [note] = run.ledger.notes
    assert "without allocations of kernels, gloo and other threads" in note
    assert "/no/such/compiler" in note
    rows = [row for row in run.ledger.rows() if (row.phase, row.place) == (Phase.FORWARD, Place.DEVICE)]
    by_category = {row.category: row for row in rows}
    assert by_category[Category.PARAMETERS].live_bytes == run.parameter_bytes
    assert by_category[Category.TOTAL].at_tensor_peak_bytes is None
    assert Category.KERNEL_WORKSPACE not in by_category
