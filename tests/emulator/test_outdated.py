"""Stand-ins of earlier sources are removed when nobody has found them for a day and no process is on them."""

import mmap
import os
import time

import pytest

from zerobench.emulator.outdated import KEPT_S, mark_found, remove_outdated


@pytest.fixture
def folders(tmp_path):
    """Stand-ins of three states of the sources, the first the current one, all found long ago; and another folder."""
    found = [tmp_path / name for name in ("stand_ins-now", "stand_ins-old", "stand_ins-used", "overlay")]
    for folder in found:
        folder.mkdir()
        (folder / "libcuda.so.1").write_bytes(b"")
        os.utime(folder, (time.time() - KEPT_S - 60,) * 2)
    return found


def processes(folder, **files):
    """A /proc with one process, whose files hold this."""
    process = folder / "proc" / "4711"
    process.mkdir(parents=True)
    for name, text in files.items():
        (process / name).write_text(text)
    return folder / "proc"


@pytest.mark.parametrize("file", ["maps", "environ"])
def test_only_those_of_other_sources_that_no_process_names_are_removed(folders, tmp_path, file):
    now, old, used, overlay = folders
    proc = processes(tmp_path, **{file: f"7f00-7f01 r-xp 00000000 08:01 1 {used}/libcuda.so.1\n"})
    remove_outdated(now, proc)
    assert [folder.exists() for folder in (now, old, used, overlay)] == [True, False, True, True]


def test_what_was_found_within_a_day_stays(folders, tmp_path):
    now, old, used, _ = folders
    mark_found(old)
    remove_outdated(now, processes(tmp_path))
    assert (old.exists(), used.exists()) == (True, False)


def test_what_a_build_that_was_killed_left_goes_after_a_day(folders, tmp_path):
    left, fresh = (tmp_path / f".stand_ins-now.{name}" for name in ("left", "fresh"))
    for folder in (left, fresh):
        folder.mkdir()
    os.utime(left, (time.time() - KEPT_S - 60,) * 2)
    remove_outdated(folders[0], processes(tmp_path))
    assert (left.exists(), fresh.exists()) == (False, True)


def test_this_process_counts_among_those_that_are_looked_at(folders):
    now, old, used, _ = folders
    descriptor = os.open(used / "libcuda.so.1", os.O_RDWR)
    os.write(descriptor, b"x" * 4096)

    with mmap.mmap(descriptor, 4096):
        remove_outdated(now)
    os.close(descriptor)
    assert (old.exists(), used.exists()) == (False, True)
