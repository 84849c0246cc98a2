"""The campaign does what there is time for, keeps it, and goes on where it was."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.csv_rows import from_csv
from benchmarks.gpu_campaign.campaign import ENDING_S, Campaign, chosen, pack, unpack
from benchmarks.gpu_campaign.cell_figures import Figure
from benchmarks.gpu_campaign.parts import HERE, PARTS, ROOT, Part
from benchmarks.gpu_campaign.state import Outcome, State
from zerobench.common.errors import UserError
from zerobench.config.derived.machine import Accelerator, Machine
from zerobench.config.hardware.hardware import known_gpu
from zerobench.config.sweep.expand import expand
from zerobench.config.sweep.sweep import load_sweep
from zerobench.emulator.emulator import Emulator
from zerobench.emulator.gpu import EmulatedGpu

GIB = 2**30
H200 = Machine(
    accelerator=Accelerator.CUDA,
    num_gpus=1,
    cpu_cores=16,
    host_memory_bytes=128 * GIB,
    device_memory_bytes=139 * GIB,
    has_liger=True,
)


def part(name: str, code: str, **fields: Any) -> Part:
    return Part(name, "", (sys.executable, "-c", code, "{folder}"), **{"least_s": 0.0, **fields})


def minutes(seconds: float) -> float:
    return (seconds + ENDING_S) / 60


def test_parts_run_in_their_order_and_their_outcomes_are_kept(tmp_path: Path) -> None:
    note = "import sys, pathlib; pathlib.Path(sys.argv[1], 'made').touch()"
    campaign = Campaign(tmp_path, minutes(30))
    campaign.run([part("good", note), part("bad", "raise SystemExit(3)")])
    assert (tmp_path / "good" / "made").exists()
    assert State.read(tmp_path).outcomes == {"good": Outcome.DONE, "bad": Outcome.FAILED}


def test_what_is_done_is_left_and_what_failed_comes_after_what_was_never_tried(tmp_path: Path) -> None:
    again = "import pathlib, sys; open(pathlib.Path(sys.argv[1]).parent / 'order', 'a').write(sys.argv[1][-1])"
    campaign = Campaign(tmp_path, minutes(30))
    campaign.state = State(outcomes={"a": Outcome.DONE, "b": Outcome.FAILED})
    campaign.run([part("a", again), part("b", again), part("c", again)])
    assert (tmp_path / "order").read_text(encoding="utf-8") == "cb"


def test_when_the_time_is_over_what_runs_is_interrupted_and_keeps_what_it_has(tmp_path: Path) -> None:
    code = (
        "import pathlib, signal, sys, time\n"
        "def leave(*_): pathlib.Path(sys.argv[1], 'kept').touch(); sys.exit(130)\n"
        "signal.signal(signal.SIGINT, leave)\n"
        "time.sleep(60)"
    )
    campaign = Campaign(tmp_path, minutes(1.5))
    begun = time.monotonic()
    campaign.run([part("long", code), part("next", "pass", least_s=5.0)])
    assert time.monotonic() - begun < 30
    assert (tmp_path / "long" / "kept").exists()
    assert campaign.state.outcomes == {"long": Outcome.CUT_OFF}


def test_a_sweep_that_was_begun_is_gone_on_with(tmp_path: Path) -> None:
    sweep = next(one for one in PARTS if one.name == "cells")
    (tmp_path / "cells" / "h200-cells_1").mkdir(parents=True)
    campaign = Campaign(tmp_path, 1.0)
    assert campaign._argv(sweep, tmp_path / "cells")[3:5] == ["run", str(HERE / "cells.yaml")]
    (tmp_path / "cells" / "h200-cells_1" / "plan.json").touch()
    run = str(tmp_path / "cells" / "h200-cells_1")
    assert campaign._argv(sweep, tmp_path / "cells")[3:] == [
        "run",
        "--resume",
        run,
        "--reports",
        str(tmp_path / "cells"),
    ]


def test_a_sweep_with_trials_that_ran_out_of_memory_is_done(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, minutes(30))
    argv = (sys.executable, "-c", "raise SystemExit(1)", "run")
    campaign.run([Part("sweep", "", argv, least_s=0.0, is_sweep=True)])
    assert campaign.state.outcomes == {"sweep": Outcome.DONE}


def test_a_part_without_its_predictions_is_not_begun(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, minutes(30))
    campaign.run([part("cells", "raise SystemExit(3)", needs=(tmp_path / "nowhere.csv",))])
    assert campaign.state.outcomes == {}


def test_the_archive_brings_everything_to_the_next_machine(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    Campaign(first, minutes(30)).run([part("good", "print('said')")])
    pack(first, tmp_path / "all.tar.gz")
    unpack(tmp_path / "all.tar.gz", second)
    assert State.read(second).outcomes == {"good": Outcome.DONE}
    assert "said" in (second / "good" / "output.txt").read_text(encoding="utf-8")


def test_an_archive_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "no.tar.gz").write_text("no", encoding="utf-8")
    with pytest.raises(UserError, match=r"--archive: .*no\.tar\.gz"):
        unpack(tmp_path / "no.tar.gz", tmp_path)


def test_a_name_that_there_is_not_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match="cells"):
        chosen("cels")


def test_every_script_and_sweep_that_a_part_names_is_there() -> None:
    files = [argument for one in PARTS for argument in one.argv if argument.endswith((".py", ".yaml"))]
    assert len(files) > len(PARTS) / 2
    assert [name for name in files if not (ROOT / name).is_file()] == []


def sweep_of(part: Part) -> tuple[str, list[str]]:
    """The sweep that a part's command runs, and what it sets."""
    words = list(part.argv[part.argv.index("run") + 1 :])
    return words[0], [words[at + 1] for at, word in enumerate(words) if word == "--set"]


RUNS = [one for one in PARTS if "run" in one.argv]


@pytest.mark.parametrize("part", RUNS, ids=lambda part: str(part.name))
def test_every_cell_that_a_parts_command_runs_can_run_on_one_h200(part: Part) -> None:
    sweep, settings = sweep_of(part)
    planned = expand(load_sweep(sweep, settings, [], None), H200)
    assert planned
    assert [item.skipped for item in planned if item.skipped] == []


@pytest.mark.parametrize("part", [one for one in RUNS if one.needs], ids=lambda part: str(part.name))
def test_what_a_part_runs_is_what_was_predicted(part: Part) -> None:
    sweep, settings = sweep_of(part)
    (file,) = part.needs
    predicted = {row.config_hash for row in from_csv(Figure, file.read_text(encoding="utf-8"))}
    assert {item.trial.config_hash for item in expand(load_sweep(sweep, settings, [], None), H200)} == predicted


def test_the_command_lists_its_parts() -> None:
    command = [sys.executable, "benchmarks/gpu_campaign/campaign.py", "--list"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [line.split()[0] for line in said.splitlines()] == [one.name for one in PARTS]


def test_a_part_that_times_nothing_runs_to_its_end_on_the_emulated_gpu(
    emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in emulator.variables(EmulatedGpu.build(known_gpu("H200 SXM")), 1, tmp_path / "account").items():
        monkeypatch.setenv(name, value)
    campaign = Campaign(tmp_path, minutes(300))
    campaign.run(chosen("driver"))
    assert campaign.state.outcome("driver") is Outcome.DONE, (tmp_path / "driver" / "output.txt").read_text()
    told = json.loads((tmp_path / "driver" / "calls.json").read_text(encoding="utf-8"))
    assert "NVIDIA H200" in json.dumps(told)
