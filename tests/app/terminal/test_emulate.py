"""What `zerobench emulate` prints: the answer first."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.predicted_trial import asked
from tests.report.sample_run import SampleTrial
from tests.report.sample_run import trial_record as sample_record
from tests.tools.rank_records import ledger_row, rank_record
from zerobench.app.terminal.emulate import as_plain, decide, exit_code, lines
from zerobench.common.vocabulary import Category, Phase, Place, Status, StepKind
from zerobench.config.derived.cluster import read_cluster
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import OwnScript, TrialSpec
from zerobench.estimate.clock.trace import PhaseStart, Recorder
from zerobench.launch.emulate.drafts import Draft
from zerobench.launch.emulate.emulation import Emulation
from zerobench.launch.emulate.figures import Try, Verdict, rank_fit
from zerobench.launch.emulate.part import Account, End, Refusal
from zerobench.launch.emulate.request import EmulationRequest
from zerobench.records.folder import RunFolder
from zerobench.records.records import DeviceMemory, Standing
from zerobench.records.verdict import load_verdict
from zerobench.report.documents.terminal import in_width
from zerobench.report.figures.verdict import change_line, verdict_sentences

GIB = 1 << 30
HAS = 143_156 << 20


def account(end=End.STOPPED, reserved=100, **more):
    figures = {"peak_bytes": (reserved - 10) * GIB, "reserved_bytes": reserved * GIB, "outside_bytes": GIB}
    return Account(
        rank=0, end=end, num_steps=3, tracked="deepspeed.initialize", touched_device=True, **{**figures, **more}
    )


def refused(**more):
    standing = Standing(
        allocated_bytes=120 * GIB,
        reserved_bytes=121 * GIB,
        largest_free_bytes=GIB // 2,
        by_category={Category.PARAMETERS: 90 * GIB, Category.ACTIVATIONS: 30 * GIB},
        by_module={"LlamaMLP": 80 * GIB},
    )
    refusal = Refusal(
        bytes_asked=40 * GIB,
        bytes_free=20 * GIB,
        standing=standing,
        message="torch.OutOfMemoryError: CUDA out of memory.",
        during="the forward phase of step 1",
    )
    return account(End.OUT_OF_DEVICE_MEMORY, 121, refusal=refusal, message=refusal.message, **more)


def row(phase, place, category, nbytes):
    return ledger_row(StepKind.FIRST, phase, place, category, nbytes)


def record():
    rows = [
        row(Phase.INIT, Place.DEVICE, Category.TOTAL, 99 * GIB),
        row(Phase.FORWARD, Place.DEVICE, Category.TOTAL, 80 * GIB),
        row(Phase.STEP, Place.DEVICE, Category.PARAMETERS, 60 * GIB),
        row(Phase.STEP, Place.DEVICE, Category.TEMPORARIES, 30 * GIB),
        row(Phase.STEP, Place.DEVICE, Category.INPUTS, 4096),
        row(Phase.STEP, Place.DEVICE, Category.TOTAL, 90 * GIB + 4096),
        row(Phase.STEP, Place.HOST, Category.TOTAL, 200 * GIB),
    ]
    return rank_record("train", world_size=8, status=Status.COMPLETED, memory=rows)


def emulation(one, ranks_record=None, needed=None, host_memory=None, **verdict):
    cluster = read_cluster(gpu="h200", gpus="8", host_memory=host_memory)
    request = EmulationRequest(("python", "train.py"), cluster, (0,), 3)
    fit = rank_fit(one, ranks_record, HAS, needed)
    found = Verdict((fit,), 8, cluster.host_memory_bytes, **verdict)
    return Emulation(request, RunFolder(Path("reports/train")), found)


def test_what_fits_is_said_with_what_is_left_and_by_category():
    made = emulation(account(peak_bytes=90 * GIB + 4096, peak_step=1), record())
    told = list(lines(made))
    assert told[-2] == "Fits on 8 x H200 SXM: needs 101.00 GiB of 139.80 GiB per GPU, 38.80 GiB to spare."
    assert "  peak 90.00 GiB, in the update of the first step:" in told
    assert "  peak allocated 90.00 GiB in step 1, reserved 100.00 GiB" in told
    assert "    parameters                  60.00 GiB   66.7%" in told
    assert "    other                        4.00 KiB" in told
    assert "  outside torch (context, NCCL): 1.00 GiB; NVML total 101.00 GiB" in told
    assert "Emulated: no values are computed; ignore losses, norms and times." in told
    assert exit_code(made) == 0


@pytest.mark.parametrize(("step", "when"), [(3, " in step 3"), (0, " in start-up"), (None, "")])
def test_a_peak_outside_the_tracked_steps_is_told_apart_from_theirs(step, when):
    made = emulation(account(peak_bytes=95 * GIB, peak_step=step), record())
    told = list(lines(made))
    assert "  peak of the tracked first two steps 90.00 GiB, in the update of the first step:" in told
    assert f"  peak allocated 95.00 GiB{when}, reserved 100.00 GiB" in told
    assert as_plain(made)["ranks"][0]["peak_step"] == step


def test_categories_of_a_compiled_model_are_said_to_be_of_the_uncompiled_one():
    told = list(lines(emulation(account(compiles=True), record())))
    assert "  uncompiled peak 90.00 GiB, in the update of the first step:" in told


def test_what_lies_in_swap_files_is_told_where_there_are_any():
    swapped = record()
    total = row(Phase.STEP, Place.NVME, Category.TOTAL, None)
    swapped.memory.extend(total.model_copy(update={"live_bytes": size * GIB}) for size in (50, 40))
    made = emulation(account(), swapped)
    assert "  NVMe: 50.00 GiB in swap files" in list(lines(made))
    assert as_plain(made)["ranks"][0]["nvme_bytes"] == 50 * GIB
    assert "NVMe" not in "".join(lines(emulation(account(), record())))


def with_trace(*kernels, batch=1, known=False):
    """The work of a script, and a record of a rank whose step has kernels that move so many bytes."""
    recorder = Recorder()
    recorder.add(PhaseStart("forward"))
    for nbytes in kernels:
        recorder.kernel(0, moved_bytes=nbytes)
    trace = recorder.trace()
    assert trace is not None
    spec = TrialSpec(
        model=ModelSpec(name="Net", hf_config={"model_type": "unknown"}),
        strategy="zero1",
        micro_batch_size=batch,
        own=OwnScript(name="train", unknown=() if known else ("model", "micro_batch_size")),
        gpus_per_node=8,
    )
    return spec, record().model_copy(update={"step_trace": trace.pack(), "micro_batch_size": batch})


def played(made, spec, ranks_record):
    made.trial, made.played = spec, SampleTrial(spec, sample_record(spec), [ranks_record])
    return made


def test_a_script_is_told_with_the_time_of_the_step_that_was_played():
    made = played(emulation(account(), record()), *with_trace(10**12))
    speed, assumed = [line for line in lines(made) if line.startswith(("speed", "  assumed"))]
    assert re.fullmatch(r"speed: \d+ ms per step expected \(\d+ ms to \d+ ms\), predicted by replay", speed)
    assert "work between steps (data loading, logging) is not included" in assumed
    plain, decision = as_plain(made), decide(made)
    low_s, step_s, high_s = (plain[f"expected_step_{name}"] for name in ("low_s", "s", "high_s"))
    assert 10**12 / 4.8e12 < low_s < step_s < high_s, "no sooner than at the memory's bandwidth"
    assert (decision.expected_step_low_s, decision.expected_step_s, decision.expected_step_high_s) == (
        low_s,
        step_s,
        high_s,
    )
    assert f"Speed: {decision.speed}." in list(verdict_sentences(decision))
    assert speed == f"speed: {decision.speed}"
    compiled = replace(made, verdict=emulation(account(compiles=True), record()).verdict)
    assert decide(compiled).speed == f"{decision.speed}, uncompiled"


def test_tokens_a_second_are_told_where_the_script_says_how_many_a_step_has():
    made = played(emulation(account(), record()), *with_trace(10**12, batch=4, known=True))
    [speed] = [line for line in lines(made) if line.startswith("speed")]
    said = re.match(r"speed: ([\d.]+) K tokens/s expected", speed)
    assert said is not None
    tokens = 8 * 4 * made.trial.sequence_length
    assert float(said[1]) == pytest.approx(tokens / as_plain(made)["expected_step_s"] / 1000, rel=0.01)


def test_a_change_is_told_with_the_time_of_its_own_play():
    before = Draft(("train.py", "ds.json"), {"train_micro_batch_size_per_gpu": 4}, 1)
    after = before.with_ds({"train_micro_batch_size_per_gpu": 1})
    (_, changed), (spec, whole) = with_trace(10**12), with_trace(3 * 10**12, batch=4)
    attempt = Try(("micro batch 1 instead of 4",), account(reserved=70), 71 * GIB, drafts=(before, after))
    made = emulation(refused(), needed=account(reserved=160), tries=(replace(attempt, record=changed), attempt))
    made = played(made, spec, whole)
    told = [line for line in lines(made) if line.startswith("  micro batch")]
    assert told == [
        "  micro batch 1 instead of 4: fits, 71.00 GiB per GPU, 33% slower",
        "  micro batch 1 instead of 4: fits, 71.00 GiB per GPU, step time unknown",
    ]
    slower = [one["expected_slower"] for one in as_plain(made)["tries"]]
    assert slower == [pytest.approx(1 / 3, abs=0.01), None], "a quarter of the samples in a third of the time"


def test_what_the_terminal_says_is_what_the_run_keeps():
    tried = (Try(("micro batch 1 instead of 4",), account(reserved=70), 71 * GIB),)
    for made in (
        emulation(account(), record()),
        emulation(refused(), needed=account(reserved=160), tries=tried),
        emulation(refused(), needed=account(reserved=160), not_tried="no option"),
    ):
        decision, told = decide(made), list(lines(made))
        assert told[-2] == decision.verdict
        assert [line for line in told if line.startswith("  micro batch")] == [
            f"  {change_line(change)}" for change in decision.changes
        ]
        assert (decision.fits, decision.needed_bytes) == (made.verdict.fits, made.verdict.ranks[0].needed_bytes)
        assert next(iter(verdict_sentences(decision))) == decision.verdict


def test_a_run_keeps_its_verdict_as_it_was_made(tmp_path):
    decision = decide(emulation(refused(), needed=account(reserved=160), not_tried="no option"))
    folder = RunFolder(tmp_path)
    assert load_verdict(folder) is None
    decision.keep(folder)
    assert load_verdict(folder) == decision


def test_why_no_time_is_expected_of_a_script_is_said():
    made = emulation(account(), record())
    why = "speed: no expected time: no steady step was recorded: two optimizer steps must be played (--steps 2)"
    assert why in list(lines(made))
    spec, _ = with_trace(1)
    assert why in list(lines(played(made, spec, record())))
    assert as_plain(made)["expected_step_s"] is None
    assert decide(made).speed is None


def test_what_does_not_fit_is_said_with_what_it_needs_and_what_was_held():
    tries = (
        Try(("ZeRO stage 3",), refused()),
        Try(("micro batch 1 instead of 8", "ZeRO stage 3"), account(reserved=70), 71 * GIB),
        Try(("activation checkpointing",), account(End.FAILED, message="error: unrecognized arguments")),
    )
    made = emulation(refused(), needed=account(reserved=160), tries=tries)
    told = list(lines(made))
    assert told[-2] == "Does not fit on 8 x H200 SXM: needs 161.00 GiB of 139.80 GiB, 21.20 GiB too much."
    at = told.index(
        "  out of memory: 40.00 GiB requested in the forward phase of step 1, 20.00 GiB free; allocated 120.00 GiB:"
    )
    assert told[at + 1 : at + 4] == [
        "    parameters                  90.00 GiB   75.0%",
        "    activations                 30.00 GiB   25.0%",
        "  torch: torch.OutOfMemoryError: CUDA out of memory.",
    ]
    assert told[at + 4 : at + 9] == [
        "  allocated 120.00 GiB of 121.00 GiB reserved by torch:",
        "    reserved but unallocated: 1.00 GiB, largest free block 512.00 MiB",
        "    full: 19.00 GiB missing even without fragmentation",
        "  by module:",
        "    LlamaMLP: 80.00 GiB, 66.7%",
    ]
    assert told[told.index("Changes, each emulated:") + 1 :][:3] == [
        "  ZeRO stage 3: does not fit the GPU",
        "  micro batch 1 instead of 8, ZeRO stage 3: fits, 71.00 GiB per GPU, step time unknown",
        "  activation checkpointing: could not be emulated: error: unrecognized arguments",
    ]
    assert exit_code(made) == 1
    (rank,) = as_plain(made)["ranks"]
    assert rank["refusal"] == {
        "bytes_asked": 40 * GIB,
        "bytes_free": 20 * GIB,
        "message": "torch.OutOfMemoryError: CUDA out of memory.",
        "during": "the forward phase of step 1",
        "held": {"parameters": 90 * GIB, "activations": 30 * GIB},
        "allocated_bytes": 120 * GIB,
        "reserved_bytes": 121 * GIB,
        "largest_free_bytes": GIB // 2,
        "by_module": {"LlamaMLP": 80 * GIB},
        "by_site": {},
        "by_holder": {},
    }


@pytest.mark.parametrize(
    ("unknown", "strategy", "fitting", "is_told"),
    [((), "zero1", 2, True), ((), "zero1", 3, False), (("precision",), "zero1", 2, False), ((), "ddp", 2, False)],
)
def test_where_few_changes_could_be_played_it_is_told_how_to_have_others_predicted(unknown, strategy, fitting, is_told):
    made = emulation(refused(), needed=account(reserved=160), tries=(Try(("ZeRO stage 3",), account()),) * fitting)
    own = OwnScript(name="my train", unknown=unknown)
    trial = TrialSpec(model=resolve_model("llama-7b"), strategy=strategy, own=own)
    told = list(lines(replace(made, trial=trial)))
    pointer = "Changes inside the script, predicted: zerobench explain reports/train 'my train' --changes"
    assert (pointer in told) is is_told


def test_a_script_that_went_on_after_a_refusal_fits_and_is_said_to_have_been_refused():
    told = list(lines(emulation(account(refusal=refused().refusal), record())))
    assert told[-2].startswith("Fits on 8 x H200 SXM")
    assert "  note: 40.00 GiB refused in the forward phase of step 1; the script went on" in told


def test_a_nodes_memory_is_judged_by_all_of_its_ranks():
    told = list(lines(emulation(account(), record(), host_memory="1TB")))
    assert told[-2] == (
        "Does not fit on 8 x H200 SXM: host memory needs 1600.00 GiB of 931.32 GiB, 668.68 GiB too much."
    )
    (host,) = [line for line in told if line.startswith("host memory")]
    assert host == (
        "host memory: 200.00 GiB of tensors per rank, 1600.00 GiB of 931.32 GiB per node of 8 ranks: does not fit, "
        "668.68 GiB too much (the emulated rank, times 8), plus Python and its libraries"
    )
    plain = as_plain(emulation(account(), record(), host_memory="1TB"))
    assert (plain["fits"], plain["causes"]) == (False, ["host"])
    assert plain["host"]["over_bytes"] == 1600 * GIB - 10**12
    assert exit_code(emulation(account(), record(), host_memory="1TB")) == 1
    assert exit_code(emulation(account(), record(), host_memory="2TB")) == 0


def test_a_node_all_of_whose_ranks_were_played_is_added_up():
    fits = [rank_fit(account(), record(), HAS, None) for _ in range(4)]
    fits = [replace(one, account=one.account.model_copy(update={"rank": rank})) for rank, one in enumerate(fits)]
    host = fits[1].host
    assert host is not None
    fits[1] = replace(fits[1], host=replace(host, total_bytes=10 * GIB))
    whole, part = Verdict(tuple(fits[:2]), 2, 500 * GIB), Verdict(tuple(fits[:3]), 2, 500 * GIB)
    assert (whole.host_node_bytes, whole.host_basis) == (210 * GIB, "sum of its 2 ranks")
    assert (part.host_node_bytes, part.host_basis) == (400 * GIB, "the largest emulated rank, times 2")
    assert Verdict(tuple(fits), 2, 300 * GIB).host_over_bytes == 100 * GIB  # the fuller of two nodes


def test_what_a_rank_refused_by_its_gpu_holds_on_the_host_is_taken_from_where_it_ran_to_its_end():
    fit = rank_fit(refused(), record(), HAS, account(reserved=160), record())
    cut_off = rank_fit(refused(), record(), HAS, account(End.FAILED))
    verdict = Verdict((fit,), 8, 10**12)
    assert (verdict.host_node_bytes, verdict.causes) == (1600 * GIB, [Place.DEVICE, Place.HOST])
    assert Verdict((cut_off,), 8, 10**12).host_node_bytes is None


def test_a_change_that_the_host_has_no_room_for_is_none_that_fits():
    node = Try(("optimizer states offloaded to the host",), account(reserved=70), 71 * GIB, 1600 * GIB, 1000 * GIB)
    assert not node.fits
    told = list(lines(emulation(refused(), needed=account(reserved=160), tries=(node,))))
    assert (
        "  optimizer states offloaded to the host: fits the GPU but not host memory: 1600.00 GiB of 1000.00 GiB" in told
    )
    assert replace(node, host_memory_bytes=None).fits


@pytest.mark.parametrize(
    ("one", "first", "code"),
    [
        (
            account(End.FAILED, exit_code=7, message="ValueError: no"),
            "The script failed on rank 0 (exit status 7): ValueError: no",
            7,
        ),
        (Account(rank=0, end=End.FINISHED), "The script never used the GPU: no memory allocated on 8 x H200 SXM.", 0),
    ],
)
def test_what_cannot_be_judged_is_said_to_be_so(one, first, code):
    made = emulation(one)
    assert list(lines(made))[-2] == first
    assert exit_code(made) == code
    assert as_plain(made)["fits"] is None


def test_of_a_script_that_failed_before_it_used_the_gpu_no_memory_is_told():
    failed = Account(rank=0, end=End.FAILED, exit_code=1, message="ValueError: no", peak_bytes=0, reserved_bytes=0)
    assert list(lines(emulation(failed))) == [
        "rank 0: 0 steps, no optimizer step seen",
        "Emulated: no values are computed; ignore losses, norms and times.",
        "",
        "The script failed on rank 0 (exit status 1): ValueError: no",
        "Run: reports/train",
    ]


def test_programs_get_bytes_and_none_for_what_is_not_known():
    told = as_plain(emulation(refused(start_peak_bytes=None), needed=account(End.FAILED)))
    (rank,) = told["ranks"]
    assert (told["fits"], rank["fits"], rank["peak_bytes"], rank["reserved_bytes"]) == (
        False,
        False,
        111 * GIB,
        121 * GIB,
    )
    assert (rank["needed_bytes"], rank["start_peak_bytes"], told["host"]["node_bytes"]) == (None, None, None)


def test_the_releases_that_acted_in_the_script_are_named_to_people_and_to_programs():
    ranks = [record().model_copy(update={"versions": {"torch": "2.13.0", "peft": "0.14.0"}})]
    kept = SampleTrial(asked(evidence="emulated"), sample_record(asked(evidence="emulated")), ranks)
    made = emulation(account(), record())
    assert "predicted with: torch 2.13.0, PEFT 0.14.0; other releases may differ" in list(lines(made, [kept]))
    assert as_plain(made, [kept])["versions"] == {"torch": "2.13.0", "peft": "0.14.0"}


def test_lines_are_wrapped_at_words_for_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    told = list(lines(emulation(account(), record(), host_memory="1TB")))
    shown = in_width(told)
    assert max(map(len, told)) > 80
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.split() == " ".join(told).split()


def of_step(step, phase, held_gib, reserved_gib):
    sizes = dict.fromkeys(("allocated_bytes", "peak_allocated_bytes", "reserved_bytes", "alloc_retries"), 0)
    return DeviceMemory(
        step=step,
        phase=phase,
        peak_reserved_bytes=reserved_gib * GIB,
        peak_occupied_bytes=held_gib * GIB,
        nvml_used_bytes=None,
        nvml_process_bytes=None,
        **sizes,
    )


def watched(start_gib, steps_gib):
    """A record whose allocator held so much at start-up and in steps, and had reserved a tenth more."""
    rows = [
        of_step(StepKind.FIRST, Phase.INIT, start_gib, start_gib + 10),
        of_step(StepKind.STEADY, Phase.BACKWARD, steps_gib, steps_gib + 10),
    ]
    return record().model_copy(update={"device_memory": rows})


@pytest.mark.parametrize(
    ("start_gib", "steps_gib", "said"),
    [
        (100, 60, "needs 101.00 GiB of 139.80 GiB per GPU, 38.80 GiB to spare (at start-up, steps 61.00 GiB)."),
        (60, 100, "needs 101.00 GiB of 139.80 GiB per GPU, 38.80 GiB to spare (in steps, start-up 61.00 GiB)."),
    ],
)
def test_the_verdict_says_whether_start_up_or_steps_need_most(start_gib, steps_gib, said):
    made = emulation(account(occupied_bytes=None))
    fit = rank_fit(account(occupied_bytes=100 * GIB), watched(start_gib, steps_gib), HAS, None)
    made = replace(made, verdict=replace(made.verdict, ranks=(fit,)))
    told = list(lines(made))
    assert [line for line in told if line.startswith("Fits on ")] == [f"Fits on 8 x H200 SXM: {said}"]
    both = f"({start_gib + 10}.00 GiB at start-up and {steps_gib + 10}.00 GiB in steps)"
    assert [line for line in told if both in line and "reserved" in line] != []
    (rank,) = as_plain(made)["ranks"]
    assert (rank["start_up_needed_bytes"], rank["steady_needed_bytes"]) == (
        (start_gib + 1) * GIB,
        (steps_gib + 1) * GIB,
    )
    assert (rank["start_up_reserved_bytes"], rank["steady_reserved_bytes"]) == (
        (start_gib + 10) * GIB,
        (steps_gib + 10) * GIB,
    )


def test_what_is_needed_between_phases_is_said_to_be_of_neither():
    made = emulation(account())
    fit = rank_fit(account(occupied_bytes=110 * GIB), watched(60, 100), HAS, None)
    told = list(lines(replace(made, verdict=replace(made.verdict, ranks=(fit,)))))
    assert [line for line in told if line.endswith("(outside start-up and the tracked steps).")] != []
