"""`zerobench doctor` as it is met: a table, and an exit status."""

import pytest

from tests.app.terminal.conftest import Call
from zerobench.launch.setup.doctor import Finding, Standing


def test_the_exit_status_is_1_where_nothing_can_run(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = [Finding("torch", Standing.MISSING, "not installed", "python -m pip install torch")]
    monkeypatch.setattr("zerobench.app.terminal.doctor.examine", lambda *_: nothing)
    code, out, _ = call("doctor")
    assert code == 1
    assert "python -m pip install torch" in " ".join(out.split())
    ended = out.rstrip().splitlines()[-3:]  # the answer comes last: it is on the screen when the command ends
    assert ended == ["no   emulated", "yes  formula", "no   submitted to Slurm"]
