"""Memory held at the failed allocation is a table wherever a run is shown, like host memory for each parameter."""

from pathlib import Path

import pytest

from tests.report.explain.runs import BUCKETS, OFFLOADED, named
from tests.report.figures.compare.runs import lay_out
from tests.report.predicted_trial import asked
from tests.report.predicted_trial import trial as simulated
from tests.report.sample_run import GIB, SampleTrial, failed_trial, spec, trial_record
from tests.tools.printed import shown_run
from zerobench.common.vocabulary import Category, Phase, StepKind
from zerobench.records.records import Failure, HostStanding, Standing
from zerobench.records.store import load_run
from zerobench.report.documents.page.assemble import page_html
from zerobench.report.documents.report import markdown_report
from zerobench.report.explain.ending import ending_topic
from zerobench.report.export.run_frames import run_frames
from zerobench.report.figures.standing import stood
from zerobench.report.tables.host_parameters import TITLE as HOST
from zerobench.report.tables.standing import TITLE as STOOD

HELD = Standing(
    allocated_bytes=60 * GIB,
    reserved_bytes=64 * GIB,
    largest_free_bytes=GIB,
    by_category={Category.ACTIVATIONS: 45 * GIB, Category.PARAMETERS: 15 * GIB, Category.INPUTS: 1},
    by_module={"LlamaMLP": 30 * GIB},
    by_site={"<b>transformers/mlp.py:forward</b>": 24 * GIB},
)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    path = tmp_path_factory.mktemp("run")
    refused = failed_trial(spec("zero2", gpus_per_node=1), Failure(message="out of memory", standing=HELD))
    known = named(BUCKETS, OFFLOADED).trial
    offloads = SampleTrial(known.spec, trial_record(known.spec), list(known.ranks))
    run = lay_out(path, "sample_20260102-030405", [refused, offloads])
    frames = run_frames([load_run(run)])
    return {"terminal": shown_run(Path(run), 140), "markdown": markdown_report(frames), "page": page_html(frames, [])}


@pytest.mark.parametrize("where", ["terminal", "markdown", "page"])
def test_each_way_of_showing_a_run_has_both_tables(shown: dict[str, str], where: str) -> None:
    text = shown[where]
    of_host = "Host memory in bytes per model parameter" if where == "terminal" else HOST
    assert of_host in text
    assert "fp32 masters" in text
    _, _, stood = text.rpartition(STOOD)
    free = ("reserved but unallocated", "4.00", "6.7", "of it in one block", "1.00", "1.7")
    for said in ("activations", "45.00", "75.0", "LlamaMLP", "30.00", "24.00", "40.0", *free):
        assert said in stood, said
    assert "inputs" not in stood.partition("allocation site")[0]
    assert where == "terminal" or "<b>transformers" not in stood


ON_HOST = HostStanding(
    at="the peak of the step phase of the first step of rank 1",
    is_last_account=True,
    by_category={Category.MASTER_WEIGHTS: 30 * GIB, Category.REST_OF_PROCESS: 10 * GIB},
    by_module={"LlamaMLP": 10 * GIB},
    by_site={"deepspeed/runtime/zero/stage_1_and_2.py:__init__": 30 * GIB},
)


def test_what_the_host_held_is_told_with_the_instant_and_by_site() -> None:
    killed = failed_trial(spec("zero2", gpus_per_node=1), Failure(message="killed", host_standing=ON_HOST))
    rows = {(share.by, share.name): (share.size_bytes, share.share) for share in stood(killed)}
    assert rows["host", f"{ON_HOST.at}, the last account before the end"] == (40 * GIB, 1.0)
    assert rows["host category", "master weights"] == (30 * GIB, 0.75)
    assert rows["host category", "rest of process"] == (10 * GIB, 0.25)
    assert rows["host module", "LlamaMLP"] == (10 * GIB, 0.25)
    assert rows["host allocation site", "deepspeed/runtime/zero/stage_1_and_2.py:__init__"] == (30 * GIB, 0.75)
    topic = ending_topic(killed, ())
    assert topic is not None
    text = " ".join(line.text for line in topic.lines)
    assert "40.00 GiB of host memory held at the peak of the step phase" in text
    assert "the last account before the end" in text


def test_a_large_process_hides_no_module_of_a_small_model() -> None:
    held = ON_HOST.model_copy(
        update={
            "by_category": {Category.MASTER_WEIGHTS: GIB, Category.REST_OF_PROCESS: 99 * GIB},
            "by_module": {"LlamaMLP": GIB // 2, "LlamaRMSNorm": GIB // 200},
        }
    )
    killed = failed_trial(spec("zero2", gpus_per_node=1), Failure(message="killed", host_standing=held))
    assert [share.name for share in stood(killed) if share.by == "host module"] == ["LlamaMLP"]


@pytest.mark.parametrize(("room", "is_told"), [(40 * GIB, False), (40 * GIB - 1, True)])
def test_a_prediction_tells_what_the_host_holds_where_a_node_has_too_little(room: int, is_told: bool) -> None:
    on_host = {(StepKind.STEADY, Phase.STEP): {Category.MASTER_WEIGHTS: 5 * GIB}}
    held = ON_HOST.model_copy(update={"is_last_account": False})
    predicted = asked(prediction={"gpu": "H100 SXM", "host_memory_bytes": room})
    trial = simulated(predicted, host=on_host).with_ranks(host_peak=held)
    assert bool(list(stood(trial))) is is_told
    topic = ending_topic(trial, ())
    assert (topic is not None and topic.title == "Does not fit the host") is is_told


def test_a_post_mortem_says_who_held_the_memory() -> None:
    held = HELD.model_copy(update={"by_holder": {"autograd: layers.*.mlp (LlamaMLP)": 30 * GIB, "engine": 15 * GIB}})
    refused = failed_trial(spec("zero2", gpus_per_node=1), Failure(message="out of memory", standing=held))
    rows = {(share.by, share.name): share.size_bytes for share in stood(refused)}
    assert rows["holder", "autograd: layers.*.mlp (LlamaMLP)"] == 30 * GIB
    topic = ending_topic(refused, ())
    assert topic is not None
    said = [line.text for line in topic.lines]
    assert "At the failed allocation, by holder:" in said
    assert "engine: 15.00 GiB, 25.0%" in said
