"""The tables of a comparison, compared whole with what they were when somebody last looked at them.

Set UPDATE_GOLDEN=1 to write the files anew, then read the difference.
"""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from rich.cells import cell_len

from tests.report.figures.compare.runs import after, before, compared, environment, lay_out, repeats
from tests.report.sample_run import SampleTrial, completed_trial, model, skipped_trial, spec
from tests.tools.golden import as_looked_at
from tests.tools.printed import printed, without_trailing_blanks
from zerobench.records.store import load_run
from zerobench.report.documents.markdown import document
from zerobench.report.documents.terminal import print_parts
from zerobench.report.figures.compare.comparison import Comparison, compare
from zerobench.report.tables.gate import judge, parse_limits
from zerobench.report.tables.two_runs import TITLE, answer_part, comparison_parts, document_parts, gate_part

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """The sample of an upgrade."""
    path = tmp_path_factory.mktemp("upgrade")
    newer = environment(deepspeed="0.19.8", torch="2.13.0")
    runs = lay_out(path, "sweep_20260102-030405", before()), lay_out(path, "sweep_20260203-040506", after(), newer)
    return compare(*map(load_run, runs))


def shown(comparison: Comparison, width: int, limits: str = "memory:2%,speed:5%") -> str:
    """What the terminal shows, without blanks at the ends of lines."""
    verdicts = judge(comparison, parse_limits(limits))
    parts = [*comparison_parts(comparison), answer_part(comparison, verdicts)]
    return without_trailing_blanks(printed(partial(print_parts, parts), width, highlight=False))


@pytest.mark.parametrize("width", [80, 140])
def test_the_tables_of_an_upgrade_are_those_that_were_looked_at(upgraded: Comparison, width: int) -> None:
    text = shown(upgraded, width)
    as_looked_at(text, GOLDEN / f"compare_{width}.txt")
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert "…" not in text


def test_without_details_only_the_categories_of_each_peak_are_left_out(upgraded: Comparison) -> None:
    whole, brief = ([part.title for part in comparison_parts(upgraded, details=one)] for one in (True, False))
    assert [title for title in whole if title not in brief] == ["Memory that differs, by category"]


def test_trials_that_both_runs_skipped_are_counted_apart(tmp_path: Path) -> None:
    trials = [completed_trial(spec("zero3")), skipped_trial(spec("zero2"), "rule")]
    runs = (lay_out(tmp_path, f"sweep_2026010{day}-030405", trials) for day in (1, 2))
    text = " ".join(shown(compare(*map(load_run, runs)), 140).split())
    assert "1 trial in both, 1 skipped in both." in text
    assert "device: tensors" in text
    assert "resident: " not in text


def test_trials_of_one_run_only_are_counted_for_each_of_the_two(tmp_path: Path) -> None:
    sides = ("zero1", "zero2", "zero3"), ("zero3", "ddp")
    trials = ([completed_trial(spec(name)) for name in names] for names in sides)
    runs = [lay_out(tmp_path, f"sweep_2026010{day}-030405", held) for day, held in enumerate(trials, 1)]
    text = " ".join(shown(compare(*map(load_run, runs)), 140).split())
    assert "1 trial in both, 2 in BASE only, 1 in NEW only." in text


def test_a_gate_says_its_worst_failure_once_and_first(upgraded: Comparison) -> None:
    part = gate_part(judge(upgraded, parse_limits("memory:3%")))
    said = [str(line).removeprefix("FAILED memory:3%: ") for line in (*part.points, *part.warnings)]
    assert len(said) == len(set(said))
    growth = [float(found[1]) for line in said if (found := re.search(r"zero2, .*\(\+([0-9.]+)%\)", line))]
    assert growth == sorted(growth, reverse=True) != []


def test_the_markdown_of_an_upgrade_is_what_was_looked_at(upgraded: Comparison) -> None:
    parts = document_parts(upgraded, judge(upgraded, parse_limits("memory:2%")))
    as_looked_at(document(TITLE, parts, level=2), GOLDEN / "compare.md")


def test_a_long_comparison_shows_what_grew_most_and_counts_the_rest(tmp_path: Path) -> None:
    trials = [completed_trial(spec("zero1", gpus_per_node=1, micro_batch_size=1 + index)) for index in range(25)]
    text = shown(compared(tmp_path, trials, trials), 80, "memory:2%")
    assert "- 5 more rows not shown" in text
    assert "memory:2%: passed, 25 trials judged" in text


def hostile(name: str) -> list[SampleTrial]:
    """Four repeats of two trials whose model is called `name`."""
    trials = [
        trial
        for asked in (spec("zero1", gpus_per_node=1, model=model(name)), spec("zero1", gpus_per_node=1))
        for trial in repeats(asked, (0.2, 0.21, 0.22, 0.23))
    ]
    return [trials[0].with_ranks(device_name=name), *trials[1:]]


@pytest.mark.parametrize("name", ["[bold]a[/] \x1b[2J", "<img src=x onerror=alert(1)>", "![a](http://evil/x.png)|@all"])
def test_names_from_a_run_are_neither_markup_nor_escapes_nor_html(tmp_path: Path, name: str) -> None:
    recorded = {**environment(), "versions": {name: name}, "hostname": name}
    runs = lay_out(tmp_path, "base", hostile(name)), lay_out(tmp_path, "new", hostile(name), recorded)
    comparison = compare(*map(load_run, runs))
    text = shown(comparison, 140)
    assert "\x1b" not in text
    assert name.replace("\x1b", "\N{REPLACEMENT CHARACTER}")[:6] in text
    page = MarkdownIt("gfm-like").render(document(TITLE, list(comparison_parts(comparison)), level=2))
    assert re.search(r"<(img|a|script)\b", page) is None
    assert re.search(r"@\w", page) is None


def test_trials_that_were_timed_in_another_way_are_named(tmp_path: Path) -> None:
    asked = spec("zero1", gpus_per_node=1)
    longer = asked.model_copy(update={"steps": asked.steps.model_copy(update={"timed": 50, "warmup": 9})})
    comparison = compared(tmp_path, [completed_trial(asked)], [completed_trial(longer)])
    assert "zero1: BASE timed 5 steps after 2 warm-up steps, NEW 50 after 9" in one_line_texts(comparison)


def one_line_texts(comparison: Comparison) -> Sequence[str]:
    return [line for part in comparison_parts(comparison) for line in (*part.points, *part.warnings)]


def test_memory_that_repeats_do_not_agree_on_is_named(tmp_path: Path) -> None:
    trials = repeats(spec("zero3", gpus_per_node=1, offload_optimizer="cpu"), (0.2, 0.2))
    memory = [
        row.model_copy(update={"at_peak_bytes": (row.at_peak_bytes or 0) + 4096}) if row.place == "host" else row
        for row in trials[1].ranks[0].memory
        if row.place == "device" or row.category in {"rest_of_process", "total"}
    ]
    trials[1] = trials[1].with_ranks(memory=memory)
    said = [line for line in one_line_texts(compared(tmp_path, trials, trials)) if "not deterministic" in line]
    assert said == [
        f"zero3: host{when}: not deterministic: repeats of BASE differ by up to 4.00 KiB, of NEW by up to 4.00 KiB; "
        "the runs differ by no more"
        for when in ("", " start-up")
    ]
