"""The snapshots of torch, read by torch's own viewer."""

import base64
import pickle
import re
import resource
from pathlib import Path
from typing import Any

import pytest

from tests.report.documents.page.browser import Browser
from tests.report.documents.page.browser import missing as no_browser
from tests.report.sample_run import GIB, MIB
from tests.tools import torch_viewer
from tests.tools.at_least_one import at_least_one
from zerobench.common.errors import UserError
from zerobench.records import store
from zerobench.report.export.memory_viz import snapshot, write_memory_viz
from zerobench.report.export.timelines import timelines

LARGEST = (700 * MIB, 5 * GIB)


@pytest.fixture(scope="module")
def written(kept: store.Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("memory-viz") / "made"
    assert write_memory_viz(timelines(kept), folder) == 1
    [path] = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def read(written: Path) -> dict[str, Any]:
    text = written.read_bytes()
    assert text[:2] == b"\x80\x04", "the viewer's own reader knows no newer protocol"
    loaded: dict[str, Any] = pickle.loads(text)  # noqa: S301 -- written above
    return loaded


def totals(events: list[dict[str, Any]]) -> list[int]:
    """Bytes that are live after each instant; every free is of a block that is live, at its address and size."""
    live: dict[int, int] = {}
    found: dict[int, int] = {}
    for event in events:
        if event["action"] == "alloc":
            end = event["addr"] + event["size"]
            assert not [one for one, size in live.items() if one < end and event["addr"] < one + size], "blocks overlap"
            live[event["addr"]] = event["size"]
        elif event["action"] == "free_completed":
            assert live.pop(event["addr"]) == event["size"]
        found[event["time_us"]] = sum(live.values())
    return [found[at] for at in sorted(found) if at]


def test_every_rank_is_a_device_whose_total_is_that_of_its_course(read: dict[str, Any]) -> None:
    assert len(read["device_traces"]) == len(LARGEST)
    for trace, largest in zip(read["device_traces"], LARGEST, strict=True):
        activations = [200 + more for more in (0, 40, 60)]
        backward = [260 * MIB, 210 * MIB + largest, 200 * MIB + largest // 2]
        step = [200 * MIB + largest // 2, 200 * MIB]
        expected = [*(mib * MIB for mib in (300, 200, *activations)), *backward, *step]
        seen = totals(trace)
        assert [size for i, size in enumerate(seen) if not i or size != seen[i - 1]] == [
            size for i, size in enumerate(expected) if not i or size != expected[i - 1]
        ]


def test_a_block_s_top_frame_and_its_colour_are_its_category_and_its_site_stands_below(read: dict[str, Any]) -> None:
    events = [event for event in read["device_traces"][0] if event["action"] == "alloc"]
    assert {event["frames"][0]["name"] for event in events} == {"parameters", "activations", "gradients"}
    assert all(event["category"] == event["frames"][0]["name"] for event in events)
    [site] = {
        tuple(frame.values()) for event in events if event["category"] == "gradients" for frame in event["frames"][1:2]
    }
    assert site == ("backward", "deepspeed/runtime/engine.py", 0)
    assert any(event.get("category") == "unknown" for event in read["device_traces"][0])


def test_the_largest_categories_have_the_viewer_s_ten_colours_which_it_deals_in_order_of_appearance(
    read: dict[str, Any],
) -> None:
    for trace in at_least_one(read["device_traces"]):
        met = dict.fromkeys(event["category"] for event in trace)
        assert list(met) == ["gradients", "parameters", "activations", "unknown"]


def test_torch_s_viewer_accounts_for_every_byte_by_category(read: dict[str, Any]) -> None:
    viewer = pytest.importorskip("torch.cuda._memory_viz")
    lines = viewer.memory(read, format_flamegraph=str)
    assert "active_allocated" in lines
    assert f":0:parameters {200 * MIB}" in lines
    said = viewer.segsum(read)  # raises where blocks do not add up to segments
    assert "segments: 6" in said
    traced = viewer.trace(read)
    assert "Device 1 ----------------" in traced
    assert f"b = cudaMalloc({2**42}, 300.0MiB)" in traced
    assert "= b[0:200.0MiB]" in traced
    for page in (viewer.trace_plot(read), viewer.segment_plot(read)):
        shown = re.search(r'"base64": "([^"]+)"', page)  # what drawing it takes, MemoryViz.js, torch does not ship
        assert shown is not None
        assert pickle.loads(base64.b64decode(shown[1])) == read  # noqa: S301 -- written above


DRAWN = """
    const [device] = arguments, gpu = document.querySelectorAll("select")[2];
    gpu.value = device;
    gpu.dispatchEvent(new Event("change"));
    const shown = [...document.querySelectorAll("body > div")].find((e) => !e.style.display.includes("none"));
    const [plot] = shown.querySelectorAll("svg"), context = shown.querySelector("pre");
    const colours = [...plot.querySelectorAll("rect[height='10']")].map((e) => e.getAttribute("fill"));
    const names = [...plot.querySelectorAll("text[font-size='10'][x]")].map((e) => e.textContent);
    const blocks = [...plot.querySelectorAll("polygon")].filter((e) => e.getBBox().height > 0).map((block) => {
      block.dispatchEvent(new Event("mouseover"));
      return [block.getAttribute("fill"), context.textContent];
    });
    return [Object.fromEntries(names.map((name, i) => [name, colours[i]])), blocks];
"""


@pytest.mark.skipif(no_browser() is not None, reason=str(no_browser()))
@pytest.mark.skipif(torch_viewer.missing() is not None, reason=str(torch_viewer.missing()))
def test_torch_s_own_page_draws_each_block_in_the_colour_of_its_category_and_tells_its_site(
    written: Path, tmp_path: Path
) -> None:
    from torch.cuda._memory_viz import _memory_viz_template as template

    path = tmp_path / "page.html"
    path.write_text(torch_viewer.page(template, written.read_bytes(), "Active Memory Timeline"), encoding="utf-8")
    browser = Browser()
    try:
        browser.open(path)
        drawn = [browser.ask(DRAWN, str(device)) for device in range(len(LARGEST))]
        assert not [line for line in browser.console() if "Error" in line]
    finally:
        browser.driver.quit()
    for (legend, (*blocks, _)), largest in zip(drawn, LARGEST, strict=True):  # the last: "small", of which it has none
        assert len(set(legend.values())) == len(legend) == 4
        named = [
            re.findall(r"after allocation: .*\((\d+) bytes\)[^\n]*\n:0:([\w ]+)\n(.*)", text)[0] for _, text in blocks
        ]
        assert [colour for colour, _ in blocks] == [legend[category] for _, category, _ in named]
        assert max(int(total) for total, _, _ in named) == 210 * MIB + largest
        sites = {site for _, category, site in named if category == "gradients"}
        assert sites == {"deepspeed/runtime/engine.py:0:backward"}


def test_a_full_disk_leaves_the_older_file_whole(kept: store.Run, tmp_path: Path) -> None:
    write_memory_viz(timelines(kept), tmp_path)
    [path] = tmp_path.iterdir()
    before, (soft, hard) = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, hard))
    try:
        with pytest.raises(UserError, match=r"^--memory-viz: .*: cannot be written: "):
            write_memory_viz(timelines(kept), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [(one, one.read_bytes()) for one in tmp_path.iterdir()] == [(path, before)]


def test_a_run_that_kept_nothing_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^--memory-viz: no memory over the step recorded"):
        write_memory_viz([], tmp_path / "none")
    assert not (tmp_path / "none").exists()
    assert snapshot([])["device_traces"] == []
