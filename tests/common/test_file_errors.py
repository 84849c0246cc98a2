"""Failed operations on files, for people: the file is named, and what to do where there is no room."""

import errno
import os
from pathlib import Path

import pytest

from zerobench.common.file_errors import (
    WORKING_DIRECTORY_GONE,
    failure_of,
    is_missing_working_directory,
    is_working_directory_gone,
    naming,
    remedy,
)

REST = ", or write elsewhere (--out, --reports)"


def failed(path: Path, error: BaseException) -> BaseException:
    """What comes out of a block that names `path` and raises `error`."""
    with pytest.raises(type(error)) as seen, naming(path):
        raise error
    return seen.value


@pytest.mark.parametrize("named", [None, ".out.csv.12.ab12-01234567.tmp", b".out.csv.12.tmp"])
def test_a_write_that_names_no_file_or_a_temporary_one_names_the_file_that_was_meant(named: str | bytes | None) -> None:
    path = Path("/data/out.csv")
    where = () if named is None else (named if isinstance(named, bytes) else f"/data/{named}",)
    error = failed(path, OSError(errno.ENOSPC, "No space left on device", *where))
    assert isinstance(error, OSError)
    assert (error.errno, error.filename, error.strerror) == (errno.ENOSPC, str(path), os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("error", [
    OSError(errno.ENOENT, "No such file or directory", "/data/other.csv"),
    OSError(errno.ENOENT, "No such file or directory", "/data/out.csv"),
    OSError("without a number"),
    BrokenPipeError(errno.EPIPE, "Broken pipe"),
    ValueError("no error of a file"),
])  # fmt: skip
def test_all_other_errors_come_out_as_they_are(error: BaseException) -> None:
    assert failed(Path("/data/out.csv"), error) is error


@pytest.mark.parametrize(("number", "action"), [
    (errno.ENOSPC, "free space there"),
    (errno.EDQUOT, "free space there"),
    (errno.EFBIG, "raise the limit of a file's size (ulimit -f)"),
    (errno.EROFS, "mount it writable"),
])  # fmt: skip
def test_where_there_is_no_room_a_person_is_told_what_to_do(number: int, action: str) -> None:
    error = OSError(number, "why", "/data/out.csv")
    assert remedy(error) == action + REST
    assert failure_of(error) == f"/data/out.csv: why; {action}{REST}"


@pytest.mark.parametrize("error", [OSError(errno.EACCES, "Permission denied", "/x"), OSError("no number")])
def test_for_all_else_there_is_no_remedy(error: OSError) -> None:
    assert remedy(error) is None


@pytest.mark.parametrize(("error", "otherwise", "said"), [
    (OSError(errno.EACCES, "Permission denied", "/x"), "a file", "/x: Permission denied"),
    (OSError(errno.EACCES, "Permission denied", b"/x"), "a file", "/x: Permission denied"),
    (OSError(errno.EIO, "Input/output error"), "standard output", "standard output: Input/output error"),
    (OSError("odd"), "a file", "a file: odd"),
])  # fmt: skip
def test_a_failure_names_its_file_or_what_else_it_is_of(error: OSError, otherwise: str, said: str) -> None:
    assert failure_of(error, otherwise) == said


def test_a_relative_path_fails_for_want_of_a_working_directory_where_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not so an absolute one, nor what fails for another reason."""
    missing = [OSError(errno.ENOENT, "No such file", name) for name in ("out.csv", b"out.csv", None)]
    others = [OSError(errno.ENOENT, "No such file", "/out.csv"), OSError(errno.EACCES, "no", "out.csv")]
    assert not is_working_directory_gone()
    assert [is_missing_working_directory(one) for one in missing] == [False] * 3
    monkeypatch.chdir(tmp_path)  # and back at the end
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    assert is_working_directory_gone()
    assert [is_missing_working_directory(one) for one in (*missing, *others)] == [True] * 3 + [False] * 2
    assert failure_of(missing[0]) == WORKING_DIRECTORY_GONE
    assert failure_of(others[0]) == "/out.csv: No such file"
