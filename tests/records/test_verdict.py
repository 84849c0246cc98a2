"""A verdict is kept in its run's folder and read back as it was made."""

from pathlib import Path

from zerobench.records.folder import RunFolder
from zerobench.records.verdict import RunVerdict, TriedChange, load_verdict


def test_what_was_kept_is_what_is_read(tmp_path: Path) -> None:
    change = TriedChange(changes=["ZeRO stage 2"], fits=True, outcome="needs 3 GiB", needed_bytes=3, slower=0.25)
    verdict = RunVerdict(verdict="It fits.", fits=True, needed_bytes=1, capacity_bytes=2, changes=[change])
    verdict.keep(RunFolder(tmp_path))
    assert load_verdict(RunFolder(tmp_path)) == verdict


def test_a_run_without_one_or_with_a_torn_one_has_none(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert load_verdict(run) is None
    RunVerdict(verdict="It fits.", fits=True).keep(run)
    run.verdict.write_text(run.verdict.read_text()[:20])
    assert load_verdict(run) is None
