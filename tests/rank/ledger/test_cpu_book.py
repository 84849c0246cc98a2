"""The book of torch's CPU allocator holds every block once, whoever took it, from its birth to its death."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.rank.ledger.test_ledger import Trained
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.rank.ledger import cpu_book
from zerobench.rank.ledger.cpu_book import HOROVOD, CpuBook, NoBookError, library, opened_book, starting_horovod
from zerobench.rank.ledger.storages import StorageCounter


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


MEGABYTE = 1_000_000


class StandIn(torch.Tensor):
    """Without memory of its own."""

    @classmethod
    def __torch_dispatch__(cls, *_: Any) -> Any:
        raise NotImplementedError


@pytest.fixture
def book() -> Iterator[CpuBook]:
    book = opened_book()
    book.forget_foreign()
    yield book
    book.close()


@pytest.fixture
def counter(book: CpuBook) -> StorageCounter:
    """Counter of storages, over the book."""
    counter = StorageCounter()
    counter.keep_book(book)
    return counter


def test_a_block_of_another_thread_is_booked_until_it_is_given_back(book):
    made: list[torch.Tensor] = []
    before = book.total_bytes()
    thread = threading.Thread(target=lambda: made.append(torch.zeros(250_000)))
    thread.start()
    thread.join()
    assert book.total_bytes() - before == MEGABYTE
    made.clear()
    assert book.total_bytes() == before


def test_changes_come_in_order_with_the_operation_that_ran(book):
    book.start_phase()
    outer = book.begin()
    kept = torch.empty(100)
    book.end(outer)
    freed = torch.empty(200)
    del freed
    pages = book.pages()
    assert [change.nbytes for change in pages.changes] == [400, 800, -800]
    assert pages.changes[0].operation != outer
    assert [change.operation for change in pages.changes[1:]] == [outer, outer]
    assert pages.changes[0].serial in {block.serial for block in pages.standing}
    assert kept.nbytes == 400


def test_blocks_that_stand_are_known_by_the_thread_that_took_them_where_horovod_started_it(book):
    made: list[torch.Tensor] = []
    own_name = Path("/proc/thread-self/comm").read_text()
    threads = []
    for context in (starting_horovod(), nullcontext()):
        with context:
            threads.append(threading.Thread(target=lambda: made.append(torch.zeros(300_000))))
            threads[-1].start()
            threads[-1].join()
    book.start_phase()
    found = [block.operation for block in book.pages().standing if block.nbytes == 1_200_000]
    assert sorted(found) == [HOROVOD, 0]
    assert Path("/proc/thread-self/comm").read_text() == own_name


def test_storages_on_the_same_memory_are_one_block(book, counter):
    with counter:
        tensor = torch.zeros(250_000)
        before = book.total_bytes()
        twin = torch.from_numpy(tensor.numpy())
        part = torch.from_numpy(tensor.numpy()[1000:2000])
    found = [counter.find(one) for one in (tensor, twin, part)]
    assert len({storage.block for storage in found if storage is not None}) == 1
    assert None not in found
    assert book.total_bytes() == before


def test_memory_that_is_not_the_allocators_is_booked_while_a_storage_stands_on_it(book, counter):
    memory = bytearray(MEGABYTE)
    before = book.total_bytes()
    with counter:
        first = torch.frombuffer(memory, dtype=torch.uint8)
        second = torch.frombuffer(memory, dtype=torch.uint8)
    assert book.total_bytes() - before == MEGABYTE
    del first
    assert book.total_bytes() - before == MEGABYTE
    del second
    assert book.total_bytes() == before


def test_a_tensor_that_stands_for_another_and_has_no_memory_is_not_booked(book, counter):
    before = book.total_bytes()
    stand_in = StandIn._make_wrapper_subclass(StandIn, (1000,), dtype=torch.float32)
    counter.see(stand_in)
    assert stand_in.untyped_storage().nbytes() == 4000
    assert book.total_bytes() == before


def test_a_storage_that_moved_to_other_memory_is_booked_where_it_is(book, counter):
    with counter:
        tensor = torch.zeros(250_000)
        before = book.total_bytes()
        tensor.share_memory_()
        assert book.total_bytes() == before - MEGABYTE  # its block is given back, and nobody knows of the other yet
        tensor.add_(1)
        assert book.total_bytes() == before


def test_closed_it_books_nothing_and_still_hears_of_what_is_given_back(book):
    tensor = torch.zeros(250_000)
    before = book.total_bytes()
    book.close()
    other = torch.zeros(250_000)
    assert book.total_bytes() == before
    del tensor
    assert book.total_bytes() == before - MEGABYTE
    assert other.nbytes == MEGABYTE


def test_a_forked_process_allocates_while_other_threads_did(book):
    stop = threading.Event()

    def allocate() -> None:
        while not stop.is_set():
            torch.empty(10)

    threads = [threading.Thread(target=allocate) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        children = [os.fork() for _ in range(5)]
        if 0 in children:
            torch.empty(10)
            os._exit(0)
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * 5
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_torchs_own_profiler_still_sees_every_block(book):
    with torch.profiler.profile(profile_memory=True) as profiler:
        tensor = torch.empty(250_000)
    taken = [event.self_cpu_memory_usage for event in profiler.key_averages() if event.key == "aten::empty"]
    assert taken == [MEGABYTE]
    assert tensor.nbytes == MEGABYTE
