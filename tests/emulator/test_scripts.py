"""Scripts of the kinds that people have, run unmodified on GPUs that are not there."""

from __future__ import annotations

import html
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.prediction.simulated import simulate
from tests.tools.known import known
from zerobench.common.vocabulary import Category, Phase, Place, Status, StepKind
from zerobench.config.hardware.hardware import find_gpu
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import Evidence, PredictionSpec, StepsSpec, TrialSpec
from zerobench.emulator.emulator import Emulator
from zerobench.estimate.clock.trace import Call, PhaseStart, unpack
from zerobench.rank.ledger.held import UNSEEN
from zerobench.records.store import load_run
from zerobench.report.documents.page.assemble import page_html
from zerobench.report.explain.sentences import headline
from zerobench.report.figures.capacity import device_need
from zerobench.report.figures.nvml_view import waterfall
from zerobench.report.figures.run.runs import run_figures

SCRIPTS = Path(__file__).with_name("scripts")
GIB = 1 << 30
TRAINER = ["--output_dir", "out", "--bf16", "True", "--max_steps", "50", "--report_to", "none"]

Emulate = Callable[..., tuple[int, Any, str]]


@pytest.fixture(scope="module")
def emulate(emulator: Emulator, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Emulate:
    """Run `zerobench emulate --json`, once however often it is asked: exit status, what it printed, and its errors.

    `forked` where how a rank begins is not the question and its like begins by itself in another test.
    """

    @cache
    def outcome(*words: str, forked: bool) -> tuple[int, Any, str]:
        module = "tests.tools.forked_zerobench" if forked else "zerobench"
        full = [sys.executable, "-m", module, "emulate", "--json", *words]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])}
        if forked:
            environ |= request.getfixturevalue("forked_scripts")
        folder = tmp_path_factory.mktemp("emulated")
        done = subprocess.run(full, cwd=folder, env=environ, capture_output=True, text=True, timeout=1800, check=False)
        assert done.returncode != 2 or list(folder.glob("reports/*/plan.json")) == []  # what is refused leaves nothing
        told = json.loads(done.stdout) if done.stdout.strip() else None
        return done.returncode, told, done.stderr

    def run(*options: str, command: list[str], forked: bool = False) -> tuple[int, Any, str]:
        return outcome(*options, "--", *command, forked=forked)

    return run


def script(name: str) -> str:
    return str(SCRIPTS / name)


ACCUMULATED = (
    ["--gpus", "16", "--gpu", "a100-40", "--ranks", "last", "--steps", "2"],
    ["torchrun", "--nproc-per-node", "8", script("ddp_accumulation.py")],
)
TRAINER_AT_STAGE_2 = (
    ["--gpu", "h200", "--gpus", "8"],
    [
        "deepspeed",
        script("hf_trainer.py"),
        *TRAINER,
        "--per_device_train_batch_size=4",
        "--deepspeed",
        script("ds_zero2.json"),
    ],
)


def only_rank(told: Any) -> Any:
    (rank,) = told["ranks"]
    return rank


def check_named(rank: Any, *expected: Category, unattributed: float = 0.01) -> None:
    """The peak has these categories, and hardly anything has no name."""
    held = rank["categories"]
    assert {category.value for category in expected} <= {name for name, size in held.items() if size > 0}
    total = sum(held.values())
    assert held.get("unattributed", 0) <= unattributed * total
    assert total <= rank["peak_bytes"] <= rank["reserved_bytes"]


def test_a_deepspeed_loop_with_offload_is_followed_and_leaves_a_run_that_reports_read(emulate):
    config = ["--deepspeed", "--deepspeed_config", script("ds_offload.json")]
    command = ["deepspeed", "--num_gpus", "8", script("deepspeed_loop.py"), *config]
    code, told, errors = emulate("--gpus", "8", "--gpu", "h200", "--host-memory", "1TB", command=command)
    assert code == 0, errors
    rank = only_rank(told)
    assert (told["fits"], told["host"]["fits"], rank["steps"], rank["end"]) == (True, True, 3, "stopped")
    assert rank["tracked"] == "deepspeed.initialize"
    assert errors.startswith("rank 0 of 8 on an emulated H200 SXM\n")
    check_named(rank, Category.PARAMETERS, Category.REDUCE_BUFFERS)
    assert rank["outside_torch_bytes"] > GIB  # context and NCCL
    # fp32 masters and two moments of 18.2 million parameters in eight parts, on the host, for eight ranks
    assert told["host"]["node_bytes"] > 12 * 18.2e6
    run = load_run(Path(told["run"]))
    (trial,) = run.trials()
    assert (trial.spec.evidence.value, trial.spec.strategy, trial.spec.world_size) == ("emulated", "zero2", 8)
    assert trial.spec.prediction.gpu == "H200 SXM"
    start = {row.category: row.at_peak_bytes or 0 for row in trial.ranks[0].memory if row.phase is Phase.INIT}
    # DeepSpeed begins torch's count of the peak anew while it starts (see_memory_usage); ours goes on.
    assert 0 < start[Category.TOTAL] <= rank["start_peak_bytes"]
    assert start[Category.PARAMETERS] >= 2 * 17_990_912
    assert trial.ranks[0].device_capacity_bytes == known(find_gpu("H200 SXM")).usable_memory_bytes
    assert (trial.folder.path / "memory_snapshot_0.pickle").stat().st_size > 0
    seen = known(waterfall(trial))
    assert (seen.context_bytes or 0) + (seen.collectives_bytes or 0) == rank["outside_torch_bytes"]
    assert (seen.used_bytes, seen.unexplained_bytes) == (rank["nvml_bytes"], 0)
    need = known(device_need(trial))
    # The page's need and the command's, of which start-up's segments that are empty by now are no part.
    assert need.total_bytes == rank["needed_bytes"] < rank["nvml_bytes"]


def test_ddp_with_accumulation_counts_optimizer_steps_and_ends_by_itself_cleanly(emulate):
    options, command = ACCUMULATED
    code, told, errors = emulate(*options, command=command, forked=True)
    assert code == 0, errors
    rank = only_rank(told)
    assert (rank["rank"], rank["steps"], rank["tracked"]) == (15, 2, "DistributedDataParallel")
    check_named(rank, Category.GRADIENTS)  # and the reducer's buckets, which are made in C++
    assert rank["categories"]["first_moment"] == pytest.approx(84_082_728, rel=1e-3)  # 21 million parameters in fp32
    printed = [path.read_text() for path in Path(told["run"]).glob("trials/*/std*.txt")]
    assert "Traceback" not in "".join(printed)


def test_a_script_that_says_nothing_of_its_batch_has_the_time_of_the_step_that_it_issued(emulate):
    options, command = ACCUMULATED
    _, told, errors = emulate(*options, command=command, forked=True)
    (trial,) = load_run(Path(told["run"])).trials()
    step = unpack(known(trial.ranks[0].step_trace))
    passes = [at for at, item in enumerate(step.items) if item == PhaseStart(Phase.FORWARD)]
    reduced = [at for at, item in enumerate(step.items) if isinstance(item, Call) and item.kind == "all_reduce"]
    assert len(passes) == 4, errors
    assert min(reduced) > passes[-1], "no_sync: gradients are reduced in the last micro-batch alone"
    assert 0 < told["expected_step_low_s"] < told["expected_step_s"] < told["expected_step_high_s"]
    page = html.unescape(page_html(run_figures([load_run(Path(told["run"]))])))
    assert "per step expected" in page
    assert "predicted by replay" in page


@pytest.mark.parametrize(
    ("options", "command"),
    [
        pytest.param(
            ["--gpus", "1", "--gpu", "h200"],
            ["python", script("output_kept.py")],
            id="keys and values of the output before",
        ),
        pytest.param(*ACCUMULATED, id="DDP's buckets before the first backward"),
        pytest.param(*TRAINER_AT_STAGE_2, id="peaks that DeepSpeed resets while it builds its engine"),
    ],
)
def test_every_phase_of_a_loop_has_its_bytes_named(emulate, options, command):
    code, told, errors = emulate(*options, command=command, forked=True)
    assert code == 0, errors
    (trial,) = load_run(Path(told["run"])).trials()
    rows = [row for row in trial.ranks[0].memory if row.place is Place.DEVICE]
    totals = [row for row in rows if row.category is Category.TOTAL]
    assert {row.phase for row in totals} == set(Phase)
    for total in totals:
        here = [row for row in rows if (row.step, row.phase) == (total.step, total.phase)]
        for unnamed in (row for row in here if row.category is Category.UNATTRIBUTED):
            assert abs(unnamed.at_peak_bytes or 0) <= (total.at_peak_bytes or 0) / 100, (total.step, total.phase)
            assert abs(unnamed.live_bytes or 0) <= (total.live_bytes or 0) / 100, (total.step, total.phase)
    start = {row.category for row in rows if row.phase is Phase.INIT and row.at_peak_bytes}
    assert Category.WORKSPACES not in start  # matrices of a workspace's size are matrices


def test_a_script_that_asks_for_too_much_is_told_by_how_much_and_what_was_held(emulate):
    code, told, errors = emulate(
        "--gpus", "1", "--gpu", "h200", command=["python", script("too_large.py")], forked=True
    )
    assert code == 1, errors
    rank = only_rank(told)
    assert (told["fits"], rank["fits"], rank["end"]) == (False, False, "out_of_device_memory")
    layer = 4 * 100_000**2
    assert rank["refusal"]["bytes_asked"] == pytest.approx(layer, rel=1e-3)
    assert rank["refusal"]["held"] == {"parameters": 3 * layer, "unattributed": 0}
    assert rank["refusal"]["by_site"] == {"allocated before tracking": 3 * layer}
    assert rank["refusal"]["message"].startswith("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 37.25")
    # All twelve layers with their gradients: what the same script needs where there is room.
    assert rank["needed_bytes"] == pytest.approx(2 * 12 * layer, rel=0.06)
    assert "no DeepSpeed configuration file" in told["not_tried"]


TOO_LARGE = ("h200", ["python", script("too_large.py")], True)
IN_PIECES = ("t4", ["python", script("fragmented.py")], False)


@pytest.mark.parametrize(("gpu", "command", "forked"), [TOO_LARGE, IN_PIECES], ids=["too large", "in pieces"])
def test_the_page_of_what_does_not_fit_has_the_verdict_number_and_changes_of_the_terminal(
    emulate, gpu, command, forked
):
    _, told, _ = emulate("--gpus", "1", "--gpu", gpu, command=command, forked=forked)
    figures = run_figures([load_run(Path(told["run"]))])
    verdict, *rest = headline(figures)
    needed, capacity = only_rank(told)["needed_bytes"] / GIB, told["device_memory_bytes"] / GIB
    assert verdict.startswith(f"Does not fit on 1 x {told['gpu']}: needs {needed:.2f} GiB of {capacity:.2f} GiB")
    tried = " ".join(rest)
    assert [", ".join(one["changes"]) in tried for one in told["tries"]] == [True] * len(told["tries"])
    assert (told["not_tried"] or "Changes, each emulated: ") in tried
    page = html.unescape(page_html(figures))
    assert verdict in page
    assert "No device memory recorded" not in page
    assert "Peak host memory" not in page


def test_a_refused_rank_keeps_the_memory_of_the_play_that_had_room(emulate):
    _, told, _ = emulate("--gpus", "1", "--gpu", "a30", command=["python", script("grows.py")])
    (trial,) = run_figures([load_run(Path(told["run"]))]).figures
    rank = only_rank(told)
    assert (trial.status, trial.is_whole) == (Status.OUT_OF_DEVICE_MEMORY, True)
    assert trial.device_needed_bytes == rank["needed_bytes"]
    assert known(trial.device_peak_bytes) > told["device_memory_bytes"]
    record = known(next(iter(load_run(Path(told["run"])).trials()))).ranks[0]
    assert {row.phase for row in record.memory} == {Phase.INIT, Phase.FORWARD, Phase.BACKWARD, Phase.STEP}
    assert known(known(record.failure).standing).allocated_bytes < told["device_memory_bytes"]


def test_without_flash_attention_the_refusal_names_attention_and_nothing_is_tried_where_nobody_asks(emulate):
    config = ["--deepspeed", "--deepspeed_config", script("ds_plain.json")]
    command = ["deepspeed", script("deepspeed_loop.py"), "--length", "8192", *config]
    code, told, errors = emulate(
        "--gpus", "64", "--gpu", "t4", "--steps", "2", "--no-tries", command=command, forked=True
    )
    assert code == 1, errors
    assert told["tries"] == []
    refusal = only_rank(told)["refusal"]
    assert refusal["held"]["activations"] > 4 * GIB  # that GPU has no flash attention
    assert max(refusal["by_module"], key=refusal["by_module"].get) == "sdpa_attention_forward"
    assert "LlamaMLP" in refusal["by_module"]
    assert sum(refusal["by_site"].values()) == pytest.approx(refusal["allocated_bytes"], rel=0.01)


def test_memory_in_pieces_is_seen_and_segments_that_grow_are_tried(emulate):
    code, told, errors = emulate("--gpus", "1", "--gpu", "t4", command=["python", script("fragmented.py")])
    assert code == 1, errors
    refusal = only_rank(told)["refusal"]
    assert (refusal["bytes_asked"], refusal["allocated_bytes"]) == (4 * GIB, 6 * 5 * GIB // 4)
    assert refusal["largest_free_bytes"] == 3 * GIB // 4  # beside each in 2 GiB
    (tried,) = told["tries"]
    assert tried["changes"] == ["PYTORCH_ALLOC_CONF=expandable_segments:True in the environment"]
    assert tried["fits"]
    # The six blocks of the start, which hold the rest afterwards, and the context.
    assert 12 * GIB < tried["needed_bytes"] < 12.6 * GIB


@pytest.mark.slow
def test_an_option_that_the_script_parses_is_tried_from_its_default_and_found_to_fit(emulate):
    large = ["--output_dir", "out", "--block_size", "3584", "--report_to", "none"]
    command = ["torchrun", script("hf_trainer.py"), *large]
    code, told, errors = emulate("--gpus", "8", "--gpu", "t4", "--steps", "2", command=command, forked=True)
    assert code == 1, errors
    written = "--per_device_train_batch_size 1 --gradient_accumulation_steps 8"
    has = told["device_memory_bytes"]
    assert only_rank(told)["needed_bytes"] > has
    fitting = [tried for tried in told["tries"] if tried["fits"]]
    assert len(fitting) == 3
    [smaller] = [tried for tried in fitting if tried["changes"] == [f"micro batch 1 instead of 8 ({written})"]]
    assert smaller["needed_bytes"] < has


@pytest.mark.slow
def test_a_node_without_room_for_what_is_offloaded_does_not_fit_and_the_states_go_back(emulate):
    config = ["--deepspeed", "--deepspeed_config", script("ds_offload.json")]
    command = ["deepspeed", script("deepspeed_loop.py"), *config]
    options = ["--gpus", "8", "--gpu", "h200", "--host-memory", "0.1GB", "--steps", "2"]
    code, told, errors = emulate(*options, command=command, forked=True)
    assert code == 1, errors
    host = told["host"]
    assert (told["fits"], told["causes"], host["fits"], only_rank(told)["fits"]) == (False, ["host"], False, True)
    assert host["over_bytes"] == host["node_bytes"] - 10**8 > 10**8
    assert host["basis"] == "the emulated rank, times 8"
    (moved,) = told["tries"]
    assert (moved["changes"], moved["fits"]) == (["optimizer states on the GPU"], True)
    assert moved["host_node_bytes"] < 10**8
    (trial,) = load_run(Path(told["run"])).trials()
    assert trial.record.status is Status.OUT_OF_HOST_MEMORY
    held = known(known(trial.record.failure).host_standing)
    assert "unknown" not in held.by_site
    assert held.by_site[UNSEEN] == held.by_category[Category.UNATTRIBUTED]  # the script's own batches
    assert sum(held.by_module.values()) == 4 * held.by_category[Category.MASTER_WEIGHTS]


@pytest.mark.slow
def test_what_torch_compile_saves_is_counted_where_the_same_model_uncompiled_does_not_fit(emulate):
    weights = 3 * GIB
    command = ["python", script("compiled.py"), str(weights // 4), "default"]
    code, told, errors = emulate("--gpus", "1", "--gpu", "t4", command=command)
    assert code == 0, errors
    rank = only_rank(told)
    assert (told["fits"], rank["compiled"], rank["steps"], rank["end"]) == (True, True, 3, "stopped")
    assert rank["peak_bytes"] == pytest.approx(
        2 * weights, rel=0.001
    )  # and their gradients; uncompiled 7 times as much
    assert any("of the uncompiled model" in note for note in rank["notes"])
    (trial,) = load_run(Path(told["run"])).trials()
    assert trial.record.status is Status.COMPLETED
    assert any("compiled, rank 0 allocates 6.00 GiB" in note for note in trial.record.notes)


@pytest.mark.slow
@pytest.mark.xdist_group("deepcompile")  # which compiles DeepSpeed's C++ once
@pytest.mark.parametrize(
    ("stage", "steps", "in_bf16"),
    [
        pytest.param("1", 3, 7, id="zero1: gradients and three times fp32 of this rank's eighth"),
        pytest.param("3", 7, 8, id="zero3: the parameters too, all gathered from the sixth step on"),
    ],
)
def test_deepcompile_holds_two_buckets_and_every_parameter(emulate, stage, steps, in_bf16):
    width, layers, bucket = 16384, 4, 300_000_000
    command = ["python", script("deepcompile.py"), stage, *map(str, (width, layers, bucket))]
    code, told, errors = emulate("--gpus", "8", "--gpu", "h200", command=command, forked=True)
    assert code == 0, errors
    rank = only_rank(told)
    assert (told["fits"], rank["compiled"], rank["steps"], rank["end"]) == (True, True, steps, "stopped")
    layer = 2 * width**2
    states = layers * layer // 8 * in_bf16
    assert rank["categories"]["reduce_buffers"] == 2 * bucket  # of the engine that is not compiled, which has one
    buckets = 2 * 2 * bucket
    whole = layers * layer + 2 * layer  # all parameters, and the gradients of two layers
    assert rank["peak_bytes"] == pytest.approx(states + buckets + rank["categories"]["workspaces"] + whole, rel=0.002)


@pytest.mark.slow
def test_a_script_that_captures_cuda_graphs_is_told_that_there_are_none(emulate):
    command = ["python", script("compiled.py"), "1024", "reduce-overhead"]
    code, told, errors = emulate("--gpus", "1", "--gpu", "h200", command=command, forked=True)
    assert code == 1, errors
    assert told["failed"]["message"].endswith("CUDA error: CUDA graphs cannot be captured on the emulated GPU")


def test_a_script_that_fails_by_itself_keeps_its_status_and_its_last_line(emulate):
    code, told, errors = emulate("--gpus", "1", "--gpu", "h200", command=["python", script("broken.py")])
    assert code == 1, errors
    assert told["failed"] == {"exit_code": 1, "message": "ValueError: no such column: text"}
    assert (told["fits"], only_rank(told)["steps"]) == (None, 2)


def test_a_script_compiles_the_kernel_whose_compilation_a_dead_process_left(emulate, tmp_path, monkeypatch):
    lock = tmp_path / "extensions" / "tiny" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    program = tmp_path / "kernel.py"
    program.write_text(
        "import pathlib, torch; from torch.utils.cpp_extension import load\n"
        "source = pathlib.Path('tiny.cpp'); source.write_text('int one() { return 1; }')\n"
        "load('tiny', [str(source)], is_python_module=False); torch.ones(4, device='cuda')\n"
    )
    code, told, error = emulate("--gpu", "h100", "--gpus", "1", command=["python", str(program)])
    removed = f"removed the lock of an interrupted compilation: {lock}"
    assert code == 0
    assert removed in error
    assert removed in only_rank(told)["notes"]
    assert (lock.parent / "tiny.so").exists()


def test_a_script_that_never_uses_the_gpu_is_said_to(emulate):
    code, told, errors = emulate("--gpus", "1", "--gpu", "h200", command=["python", script("no_gpu.py")])
    assert code == 0, errors
    rank = only_rank(told)
    assert (told["fits"], rank["peak_bytes"], rank["steps"], rank["end"]) == (None, None, 0, "finished")


def test_a_command_that_contradicts_the_gpus_is_one_line_and_leaves_nothing(emulate):
    command = ["torchrun", "--nproc-per-node", "16", script("no_gpu.py")]
    code, told, errors = emulate("--gpus", "8", "--gpu", "h200", command=command)
    assert (code, told) == (2, None)
    assert errors.splitlines()[-1].startswith("zerobench: COMMAND: torchrun: --nproc-per-node 16 starts 16 ranks")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "command", "tracked", "expected", "forked"),
    [
        pytest.param(
            *TRAINER_AT_STAGE_2,
            "deepspeed.initialize",
            [Category.PARAMETERS, Category.LOGITS_AND_LOSS],
            True,
            id="Trainer, ZeRO-2",
        ),
        pytest.param(
            ["--gpu", "h200", "--gpus", "64", "--ranks", "last"],
            ["torchrun", "hf_trainer.py", "--deepspeed", "ds_zero3.json", "--per_device_train_batch_size=1", *TRAINER],
            "deepspeed.initialize",
            [Category.PARAMETERS],
            False,
            id="Trainer, ZeRO-3",
        ),
        pytest.param(
            ["--gpu", "h200", "--gpus", "8"],
            ["accelerate", "launch", "--config_file", "fsdp2.yaml", "accelerate_fsdp2.py"],
            "FSDP",
            [Category.GATHERED_PARAMETERS, Category.FIRST_MOMENT],
            False,
            id="accelerate, FSDP2",
        ),
        pytest.param(
            ["--gpu", "h200", "--gpus", "64", "--ranks", "0,last"],
            ["deepspeed", "deepspeed_pipeline.py", "--deepspeed", "--deepspeed_config", "ds_pipeline.json"],
            "deepspeed.initialize",
            [Category.PARAMETERS, Category.FIRST_MOMENT],
            True,
            id="DeepSpeed pipeline",
        ),
        pytest.param(
            ["--gpu", "h200", "--gpus", "8"],
            ["deepspeed", "autotp.py"],
            "deepspeed.initialize",
            [Category.PARAMETERS],
            True,
            id="AutoTP",
        ),
        pytest.param(
            ["--gpu", "h200", "--gpus", "1"],
            ["python", "mixtral.py"],
            "a torch loop",
            [Category.PARAMETERS, Category.FIRST_MOMENT, Category.LOGITS_AND_LOSS],
            True,
            id="mixture of experts",
        ),
    ],
)
def test_scripts_of_many_kinds_are_followed_to_their_last_step(emulate, options, command, tracked, expected, forked):
    words = [script(word) if (SCRIPTS / word).is_file() else word for word in command]
    code, told, errors = emulate(*options, command=words, forked=forked)
    assert code == 0, (errors, told)
    assert told["fits"] is True
    for rank in told["ranks"]:
        assert (rank["steps"], rank["end"], rank["tracked"], rank["compiled"]) == (3, "stopped", tracked, False)
        check_named(rank, *expected, unattributed=0.02)


@pytest.fixture
def with_packages(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lay the packages of a list beside a script over our own, in a folder of the test's own."""

    def install(wanted: str) -> None:
        folder = tmp_path_factory.mktemp("packages")
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-deps"]
        command += ["--target", str(folder), "--requirement", script(wanted)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            pytest.skip(f"{wanted}: its packages cannot be had: {done.stderr.strip().splitlines()[-1]}")
        monkeypatch.setenv("PYTHONPATH", str(folder))

    return install


@pytest.mark.extra
def test_fine_tuning_of_adapters_with_trl_is_followed_and_only_they_have_gradients(emulate, with_packages):
    with_packages("sft_lora.txt")
    command = ["torchrun", "--nproc-per-node=8", script("sft_lora.py")]
    code, told, errors = emulate("--gpus", "8", "--gpu", "h200", command=command)
    assert code == 0, (errors, told)
    rank = only_rank(told)
    assert (told["fits"], rank["steps"], rank["end"]) == (True, 3, "stopped")
    assert rank["tracked"] == "DistributedDataParallel"
    check_named(rank, Category.PARAMETERS, Category.GRADIENTS, Category.FIRST_MOMENT)
    held = rank["categories"]
    # 17.97 million frozen parameters and 78,080 of adapters of rank 8 on every matrix of two blocks, all in fp32
    assert held["parameters"] == pytest.approx(4 * (17_966_336 + 78_080), rel=0.01)
    assert held["first_moment"] == held["second_moment"] == pytest.approx(4 * 78_080, rel=0.01)
    assert held["gradients"] == pytest.approx(4 * 78_080, rel=0.01)


@pytest.mark.extra
@pytest.mark.parametrize(("stage", "in_fp32"), [(2, True), (3, False)])
def test_a_trial_with_adapters_peaks_where_peft_under_the_trainer_does(emulate, with_packages, stage, in_fp32):
    """PEFT makes adapters in fp32, and the engine casts them with the model; at stage 3 it casts nothing."""
    with_packages("peft_trainer.txt")
    options = ["--deepspeed", script(f"ds_zero{stage}.json"), "--per_device_train_batch_size", "2"]
    options += ["--adapters_in_fp32", str(in_fp32)]
    command = ["torchrun", "--nproc-per-node=8", script("peft_trainer.py"), *TRAINER, *options]
    code, told, errors = emulate("--gpus", "8", "--gpu", "h100", command=command)
    assert code == 0, (errors, told)
    [ours] = simulate([_as_peft_trainer(stage)])
    totals = [
        row.at_peak_bytes or 0
        for row in ours.memory
        if (row.category, row.place, row.step) == (Category.TOTAL, Place.DEVICE, StepKind.STEADY)
    ]
    assert max(totals) == pytest.approx(only_rank(told)["peak_bytes"], rel=0.005)


def _as_peft_trainer(stage: int) -> TrialSpec:
    """The work of peft_trainer.py, with the Trainer's default update in one kernel."""
    shape = {"family": "llama", "name": "small", "num_layers": 8, "hidden_size": 1024, "num_heads": 8}
    work = {"micro_batch_size": 2, "sequence_length": 512, "adapter": "lora-16", "optimizer": "fused_adamw"}
    asked = {
        "model": resolve_model(shape | {"intermediate_size": 2816}),
        "strategy": f"zero{stage}",
        "gpus_per_node": 8,
        "steps": StepsSpec(warmup=0, memory=1, timed=1),
        "evidence": Evidence.EMULATED,
        "prediction": PredictionSpec(gpu="H100 SXM"),
    }
    return TrialSpec.model_validate(asked | work)


@pytest.mark.extra
def test_states_of_a_paged_optimizer_are_managed_memory_and_not_needed_on_the_gpu(emulate, with_packages):
    with_packages("paged_optimizer.txt")
    command = ["python", script("paged_optimizer.py")]
    code, told, errors = emulate("--gpus", "1", "--gpu", "h200", "--gpus-per-node", "1", command=command)
    assert code == 0, (errors, told)
    rank = only_rank(told)
    states = 2 * 4 * 4 * 4096**2
    assert rank["managed_bytes"] == pytest.approx(states, rel=0.01)
    assert rank["outside_torch_bytes"] < 0.75 * GIB  # the context alone, which kernels make 758 MiB
    assert rank["host_bytes"] == pytest.approx(states, rel=0.01)
