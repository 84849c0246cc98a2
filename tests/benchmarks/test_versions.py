"""The table of DeepSpeed's releases: what it is asked for, and that the page says what was found."""

from benchmarks.versions.cells import cells
from benchmarks.versions.matrix import PEAKS, read
from benchmarks.versions.pages import PAGE, columns, jumps, with_tables
from zerobench.records.instants import GROUPS


def row(release: str, cell: str, first: int, steady: int, failure: str = "") -> dict[str, str]:
    parts = {f"{group}_bytes": "0" for group in GROUPS}
    return {
        "deepspeed": release,
        "cell": cell,
        "failure": failure,
        "first_device_bytes": str(first * 10**6),
        "steady_device_bytes": str(steady * 10**6),
        **parts,
    }


def test_forty_configurations_are_asked_for() -> None:
    known = cells()
    assert len(known) == 40
    assert len({trial.config_hash for trial in known.values()}) == 40


def test_a_jump_is_one_of_what_must_fit_between_releases_that_played_it() -> None:
    rows = [
        row("0.16.0", "a", 900, 1000),
        row("0.17.0", "a", 0, 0, "crash"),
        row("0.18.0", "a", 2000, 1000),  # a start-up that needs more than a step
        row("0.18.1", "a", 2030, 1000),  # 30 MB and 1.5%
        row("0.16.0", "b", 10, 10),
        row("0.18.0", "b", 10, 40),  # fourfold, and little
    ]
    assert [(before["deepspeed"], after["deepspeed"]) for before, after in jumps(rows)] == [("0.16.0", "0.18.0")]


def test_neighbouring_releases_that_are_alike_share_a_column() -> None:
    rows = [
        row("0.16.0", "a", 0, 1000),
        row("0.16.1", "a", 0, 1010),
        row("0.16.1", "b", 0, 500),
        row("0.16.2", "b", 0, 505),
        row("0.17.0", "b", 0, 900),
        row("0.17.1", "b", 0, 900, "crash"),
        row("0.17.2", "a", 0, 1000),  # nothing in common with the release before
    ]
    found = {name: {cell: one["deepspeed"] for cell, one in column.items()} for name, column in columns(rows).items()}
    assert found == {
        "0.16.0 to 0.16.2": {"a": "0.16.0", "b": "0.16.1"},
        "0.17.0": {"b": "0.17.0"},
        "0.17.1": {"b": "0.17.1"},
        "0.17.2": {"a": "0.17.2"},
    }


def test_the_page_has_the_tables_of_the_kept_peaks() -> None:
    rows = read(PEAKS)
    page = PAGE.read_text(encoding="utf-8")
    assert {one["cell"] for one in rows} == set(cells())
    assert with_tables(page, rows) == page
    assert with_tables(page, rows[:-1]) != page
