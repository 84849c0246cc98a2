"""What the pages say of the simulated world against torch's own allocator is what the kept rows say."""

import csv
from pathlib import Path

from benchmarks.emulated.against_simulated import HERE, Row, misses

PAGE = HERE.parent / "README.md"


def kept() -> list[Row]:
    with Path(HERE / "against_simulated.csv").open(encoding="utf-8", newline="") as file:
        return [
            Row(row["cell"], row["step"], row["phase"], *(int(row[name]) for name in list(row)[3:]))
            for row in csv.DictReader(file)
        ]


def test_the_page_says_what_the_kept_rows_come_to() -> None:
    rows, page = kept(), " ".join(PAGE.read_text(encoding="utf-8").split())
    equal = [sum(row.peak_error == 0 for row in rows), sum(row.reserved_error == 0 for row in rows)]
    largest = max(abs(row.peak_error) for row in rows)
    assert (
        f"of {len(rows)} phases of {len({row.cell for row in rows})} cells {equal[0]} allocated and {equal[1]} reserved"
        f" peaks are equal to the byte, and no allocated peak is more than {largest:.2%} off"
    ).replace("%", " %") in page


def test_no_phase_misses_a_goal() -> None:
    assert [row for row in kept() if misses(row)] == []
