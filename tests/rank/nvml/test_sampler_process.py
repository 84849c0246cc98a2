"""The sampler's deadlines leave out what was missed, and a device that is named twice is sampled once."""

import time
from pathlib import Path

from tests.nvml_standin.standin import Standin, uuid
from tests.rank.nvml.test_sampler import sample
from zerobench.rank.nvml.sampler_process import Deadlines


def test_deadlines_that_were_missed_are_left_out_and_the_next_keeps_the_spacing():
    interval_s = 0.05
    begin_s = time.monotonic()
    deadlines = Deadlines(interval_s)
    time.sleep(4.5 * interval_s)
    wait_s = deadlines.seconds_to_next()
    assert deadlines.number >= 5
    assert 0 < wait_s <= interval_s
    next_s = time.monotonic() + wait_s - begin_s
    assert abs(next_s - deadlines.number * interval_s) < interval_s / 5


def test_each_deadline_comes_once_however_often_it_is_asked_for():
    deadlines = Deadlines(10.0)
    assert [deadlines.seconds_to_next() > 10.0 * (turn - 1) for turn in (1, 2, 3)] == [True] * 3
    assert deadlines.number == 3


def test_a_device_that_is_named_twice_is_sampled_once(standin: Standin, tmp_path: Path) -> None:
    found = sample(standin, tmp_path, "gpus 2", uuid(1), uuid(1))
    assert [device.gpu_uuid for device in found.summary.devices] == [uuid(1)]
    assert (found.summary.largest_gap_s or 0) > 0


EARLY = """
import json, sys
from pathlib import Path
from zerobench.records.folder import TrialFolder
from zerobench.rank.nvml.sampler import Sampler

folder = TrialFolder(Path(sys.argv[1]))
folder.nvml_summary(0).write_text("of an earlier attempt")
sampler = Sampler.start(folder, 0, None)
there_at_once = folder.nvml_summary(0).exists()
sampler.wait_ready(20)
print(json.dumps([there_at_once, sampler.stop().available]))
"""


def test_a_summary_of_an_earlier_attempt_does_not_stand_for_the_baseline(standin: Standin, tmp_path: Path) -> None:
    assert standin.run(EARLY, "gpus 1", "new", str(tmp_path)) == [False, True]
