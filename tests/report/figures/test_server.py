"""A server's figures stand apart from its workers', and never pass for those of a rank among others."""

import dataclasses
from pathlib import Path

import pytest

from tests.report.predicted_trial import collective
from tests.report.sample_run import GIB, OPTIMIZER, SampleTrial, completed_trial, spec, trial_record, write_run
from tests.tools.known import known
from tests.tools.printed import shown_run
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.config.derived.roles import Role
from zerobench.records.instants import largest_model_states, largest_peak
from zerobench.records.records import CollectiveTraffic, MemoryRow, RankRecord
from zerobench.records.store import load_run
from zerobench.report.charts.rank_spread import spreads
from zerobench.report.export.run_frames import run_frames
from zerobench.report.figures.server import sides
from zerobench.report.figures.speed import slowest_steps, step_seconds_by_rank

WEIGHTS = 2 * GIB
ASKED = spec("parameter-server", gpus_per_node=3, gradient_accumulation_steps=2, consistency="async")


def without(rank: RankRecord, *gone: Category) -> list[MemoryRow]:
    """The rank's memory with nothing of these categories, in the totals too."""
    kept = [row for row in rank.memory if row.category not in {*gone, Category.TOTAL}]
    for total in (row for row in rank.memory if row.category is Category.TOTAL):
        parts = [row for row in kept if (row.step, row.phase, row.place) == (total.step, total.phase, total.place)]
        live, peak = sum(row.live_bytes for row in parts), sum(row.at_peak_bytes or 0 for row in parts)
        figures = {"live_bytes": live, "at_peak_bytes": peak, "own_peak_bytes": peak}
        kept.append(total.model_copy(update=figures))
    return kept


def traffic(phase: Phase, kind: str, times: int) -> CollectiveTraffic:
    return collective(kind, phase, times * WEIGHTS, 3, calls=9)


def side(rank: RankRecord) -> RankRecord:
    """The rank as a server, where it is the first, or as a worker."""
    is_server = rank.rank == 0
    gone = (Category.ACTIVATIONS, Category.LOGITS_AND_LOSS) if is_server else OPTIMIZER
    times = [
        time.model_copy(update={"wait_s": 0.05, "step_s": 9.0 if is_server else time.step_s})
        for time in rank.step_times
    ]
    moved = [traffic(Phase.BACKWARD, "recv", 2), traffic(Phase.STEP, "send", 2)]
    if not is_server:
        moved = [traffic(Phase.STEP, "send", 1), traffic(Phase.STEP, "recv", 1)]
    changed = {
        "role": Role.SERVER.value if is_server else Role.WORKER.value,
        "memory": without(rank, *gone),
        "step_times": times,
        "collectives": moved,
        "device_memory": [],
        "staleness_steps": [0, 1, 1, 1] if is_server else None,
    }
    return rank.model_copy(update=changed)


@pytest.fixture(scope="module")
def trial() -> SampleTrial:
    made = completed_trial(spec("zero0", gpus_per_node=3, gradient_accumulation_steps=2))
    ranks = [side(rank).model_copy(update={"trial_id": ASKED.trial_id}) for rank in made.ranks]
    return SampleTrial(ASKED, trial_record(ASKED, ranks_reported=3), ranks)


@pytest.fixture(scope="module")
def folder(trial: SampleTrial, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "run", [trial], samples=False).path


def test_each_side_has_its_own_peak_states_waits_and_bytes(trial: SampleTrial) -> None:
    server, workers = sides(trial)
    assert (server.role, server.num_ranks, workers.role, workers.num_ranks) == ("server", 1, "worker", 2)
    assert known(server.states).optimizer_bytes > known(workers.states).optimizer_bytes == 0
    assert (server.sent_bytes, server.received_bytes) == (2 * WEIGHTS, 2 * WEIGHTS)
    assert (workers.sent_bytes, workers.received_bytes) == (WEIGHTS, WEIGHTS)
    assert workers.formula_bytes is not None
    assert server.formula_bytes == 2 * workers.formula_bytes
    assert workers.formula_bytes == 2 * 2 * trial.ranks[0].parameters.total  # type: ignore[union-attr] # the sample has them
    assert server.wait_s == workers.wait_s == 0.05
    assert (server.mean_staleness, server.staleness_text) == (0.75, "0 x1, 1 x3")
    assert workers.mean_staleness is None


def test_a_trial_without_a_server_has_no_sides() -> None:
    assert sides(completed_trial(spec("zero1", gpus_per_node=2))) == []


def test_the_largest_peak_says_whose_it_is(trial: SampleTrial) -> None:
    for role, text in (("server", "0 server"), ("worker", "1")):
        peak = largest_peak(trial, StepKind.STEADY, Place.DEVICE, role)
        states = known(largest_model_states(trial, role))
        assert peak is not None
        assert peak.rank_text == states.rank_text == text
    whole, servers = (known(largest_peak(trial, StepKind.STEADY, Place.DEVICE, role)) for role in (None, "server"))
    assert whole.rank_text == ("0 server" if servers.total_bytes == whole.total_bytes else "1")


def test_steps_and_their_spread_are_the_workers(trial: SampleTrial) -> None:
    assert list(step_seconds_by_rank(trial)) == [1, 2]
    assert max(step.step_s for step in slowest_steps(trial)) < 9.0
    alone = dataclasses.replace(trial, ranks=trial.ranks[:1])
    assert {step.step_s for step in slowest_steps(alone)} == {9.0}


@pytest.mark.parametrize("width", [80, 140])
def test_the_terminal_shows_both_sides_in_each_table_of_memory_and_the_server_is_named(
    folder: Path, width: int
) -> None:
    text = shown_run(folder, width)
    tables = {section.splitlines()[0]: section for section in text.strip().split("\n\n")}
    for start in ("Device memory at the peak", "Model states of one rank"):
        [table] = [section for title, section in tables.items() if title.startswith(start)]
        assert table.count("0 server") == 1, table
        label = next(line.split()[0] for line in table.splitlines() if "0 server" in line)
        assert sum(line.startswith(label) for line in table.splitlines()) == 2, table
        assert "Servers: separate rows." in " ".join(table.split())
    [rank_spreads] = [section for title, section in tables.items() if title.startswith("Device memory across ranks")]
    assert "Without servers." in " ".join(rank_spreads.split())
    [apart] = [section for title, section in tables.items() if title.startswith("Parameter server and workers")]
    assert "server" in apart
    assert "worker" in apart
    assert "gradients by staleness in updates: 0 x1, 1 x3" in " ".join(apart.split())


def test_the_frames_keep_the_role_of_each_rank_and_leave_a_server_out_of_the_spread(folder: Path) -> None:
    frames = run_frames([load_run(folder)])
    assert frames.ranks["role"].tolist() == ["server", "worker", "worker"]
    [(_, spread)] = spreads(frames)
    assert spread.maximum == spread.minimum  # the two workers hold the same
    notes = [note.note for trial in frames.figures for note in trial.notes if note.note.startswith("device peak of")]
    assert [note.split("(")[0].strip() for note in notes] == ["device peak of the server", "device peak of a worker"]
