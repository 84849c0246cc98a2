"""What the README and the pages of docs/ say in figures is what tests, kept tables and files of figures hold."""

import re
import statistics
from pathlib import Path

import pytest

from benchmarks.csv_rows import from_csv
from benchmarks.prediction import formula_frontier, held_out
from benchmarks.prediction.held_out_table import Figure
from tests.tools.imports import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = " ".join(" ".join(page.read_text(encoding="utf-8") for page in PAGES).split())
FINDINGS_PAGE = ROOT / "docs" / "findings.md"
PREDICTION = Path(held_out.__file__).parent
WORDS = {"twenty": 20, "forty-one": 41}


def said(pattern: str) -> tuple[str, ...]:
    """The groups of the one place in the README and the pages that the pattern matches."""
    found = re.findall(pattern, TEXT)
    assert len(found) == 1, f"the pages say {pattern!r} in {len(found)} places"
    groups = found[0]
    return groups if isinstance(groups, tuple) else (groups,)


def tuned(section: str, quantity: str, phase: str) -> dict[str, str]:
    """A line of a table of tuned.md, by its column."""
    text = (PREDICTION / "tuned.md").read_text(encoding="utf-8").partition(f"## {section}\n")[2].partition("\n## ")[0]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    [line] = [line for line in lines[2:] if line[:2] == [quantity, phase]]
    return dict(zip(lines[0], line, strict=True))


def percent(cell: str) -> float:
    return 0.0 if cell in {"-", "0"} else abs(float(cell.removesuffix("%")))


def test_the_cells_that_were_tuned_on_are_as_many_and_as_near_as_the_pages_say() -> None:
    cells, phases, worst = said(
        r"holds (\S+) measured cells that the simulation was tuned on \(live memory of the solo world equal to the "
        r"byte in all (\d+) phases, simulated peaks at most (\S+) ?% off\)"
    )
    live = tuned("Solo against measured: device memory", "live", "all")
    assert (live["cells"], live["median"], live["over"], live["under"]) == (phases, "0", "-", "-")
    peak = tuned("Simulated against measured: device memory", "peak", "all")
    assert max(percent(peak["over"]), percent(peak["under"])) == float(worst)
    assert int(tuned("Simulated against measured: device memory", "peak", "init")["cells"]) == WORDS[cells]


def tuned_figures(world: str) -> dict[tuple[str, str, str], Figure]:
    """The figures of the cells that were tuned on, by work, step and phase."""
    text = (PREDICTION / f"tuned_{world}.csv").read_text(encoding="utf-8")
    return {(one.config_hash, str(one.step), str(one.phase)): one for one in from_csv(Figure, text)}


def test_the_kept_figures_of_the_cells_that_were_tuned_on_come_to_what_the_pages_say() -> None:
    cells, phases, worst = said(
        r"holds (\S+) measured cells that .* in all (\d+) phases, simulated peaks at most (\S+) ?% off\)"
    )
    measured, solo, simulated = (tuned_figures(world) for world in ("measured", "solo", "simulated"))
    assert measured.keys() == solo.keys() == simulated.keys()
    assert len(measured) == int(phases)
    assert len({work for work, _, _ in measured}) == WORDS[cells]
    assert all(solo[key].live_bytes == one.live_bytes for key, one in measured.items())
    errors = [abs(simulated[key].peak_bytes / one.peak_bytes - 1) for key, one in measured.items()]
    assert f"{max(errors):.2%}" == f"{worst}%"


def test_the_cells_that_were_held_out_are_as_many_as_the_pages_say_predicted_and_measured() -> None:
    [cells] = said(r"(\S+) that it was not, whose predictions were committed before they were measured")
    works = {}
    for name in ("predicted", "measured"):
        text = (PREDICTION / f"held_out_{name}.csv").read_text(encoding="utf-8")
        works[name] = {figure.config_hash for figure in from_csv(Figure, text)}
    assert works["predicted"] == works["measured"]
    assert len(works["measured"]) == WORDS[cells]


def test_the_kept_comparison_says_what_the_pages_say_of_it() -> None:
    path, exact, distance, factor = said(
        r"\[One run of it\]\((\S+)\), .* (\d+ of \d+) exact trials lose what the single process loses to (\S+), .* "
        r"ZeRO-1 and 2 send (\S+) times what DDP does"
    )
    text = (ROOT / "docs" / path).read_text(encoding="utf-8")
    assert f"{exact} agree; largest loss difference" in text
    [largest] = re.findall(r"agree; largest loss difference (\S+) \(", text)
    assert float(largest) <= float(distance)
    for strategy in ("zero1", "zero2"):
        [sent] = re.findall(
            rf"{strategy} mb12 sends [^|;]*?, (\S+) x ddp", text.partition("(2 Psi)")[2].partition("\n")[0]
        )
        assert float(sent) == float(factor)
    idle = re.findall(r"idle for (\d+) %, by formula (\d+) %", text)
    assert idle
    assert all(int(measured) > int(formula) for measured, formula in idle)


def communication(model: str, number: int) -> float:
    """What a numbered line of communication.md counted, in parameters."""
    text = (PREDICTION / "communication.md").read_text(encoding="utf-8")
    table = text.partition(f"## {model}")[2].partition("\n## ")[0]
    [counted] = re.findall(rf"^\| \({number}\) \| \d \| .* \| \d \| (\S+) \|$", table, re.MULTILINE)
    return float(counted)


def test_stages_1_and_2_move_three_times_the_parameters_and_a_small_model_at_stage_3_two() -> None:
    said(r"\*\*Stages 1 and 2 move 3Ψ by default, not the paper's 2Ψ\*\*")
    said(r"2Ψ against 3Ψ, and pays for it with a second copy of the weights")
    assert [round(communication("tiny", line), 2) for line in (2, 4, 6)] == [3.0, 3.0, 2.0]


FINDINGS = [one.strip() for one in " ".join(FINDINGS_PAGE.read_text(encoding="utf-8").split()).split(" - **")[1:]]


def test_there_are_findings() -> None:
    assert len(FINDINGS) > 10


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda text: text.partition("**")[0][:40])
def test_each_finding_names_a_test_a_table_a_command_or_the_source_that_was_read(finding: str) -> None:
    named = re.findall(r"`([^`]+)`", finding)
    files = [name for name in named if re.match(r"(tests|benchmarks|zerobench)/", name)]
    assert [name for name in files if not (ROOT / name).is_file()] == []
    held = any(name.startswith(("tests/", "benchmarks/prediction/")) for name in files)
    shown = any(name.startswith("zerobench run ") for name in named)
    read = re.search(r"\bread in (the source|`[\w/]+\.py`)", finding) is not None
    assert held or shown or read or "not covered by a test" in finding


def test_how_far_formulas_frontiers_are_from_the_simulated_ones_is_the_kept_tables() -> None:
    rows = from_csv(formula_frontier.Row, formula_frontier.FOUND.read_text(encoding="utf-8"))
    errors = [100 * (row.formula_micro_batch / row.simulated_micro_batch - 1) for row in rows]
    told = said(
        r"For (\d+) configurations on eight H200 .* was (\d+) ?% off the simulated one in the median, within 1 ?% for "
        r"(\d+) and at most (\d+) ?% too large\."
    )
    within = sum(abs(error) <= 1 for error in errors)
    assert tuple(map(int, told)) == (len(rows), round(statistics.median(errors)), within, round(max(errors)))
    assert min(errors) > -5


@pytest.mark.parametrize("row", [0, 2, 7, 14, 21, 23, 29])
def test_the_kept_frontiers_by_formula_are_what_formulas_say(row: int) -> None:
    kept = from_csv(formula_frontier.Row, formula_frontier.FOUND.read_text(encoding="utf-8"))[row]
    cell = (kept.model, kept.stage, kept.offload, kept.activation_checkpointing)
    assert formula_frontier.largest_by_formula(formula_frontier.trial_of(cell)) == kept.formula_micro_batch
