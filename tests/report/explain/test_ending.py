"""What is told of a crashed program: its error and the user's own line, however long its output was."""

from pathlib import Path

from tests.report.sample_run import RUN_ID, failed_trial, spec, write_run
from zerobench.common.vocabulary import Status
from zerobench.records.records import Failure
from zerobench.records.store import load_run
from zerobench.report.explain.ending import printed_lines
from zerobench.report.explain.topic import as_text
from zerobench.report.explain.trial import explain

TRACEBACK = """\
Traceback (most recent call last):
  File "/home/ann/train.py", line 57, in <module>
    main()
  File "/home/ann/train.py", line 41, in main
    loss = model(batch)
           ^^^^^^^^^^^^
  File "/env/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1776, in _call_impl
    return forward_call(*args, **kwargs)
  File "/env/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 125, in forward
    return F.linear(input, self.weight, self.bias)
RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x8 and 16x2)"""
LAUNCHER = "[2026-01-01 12:00:00,000] [ERROR] [launch.py:325:sigkill_handler] ['python', 'train.py'] exits with 1"
EVIDENCE = "exit status 1; last lines:\n== stderr.log\n"
EXPECTED = [
    "Evidence: exit status 1.",
    "Error: RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x8 and 16x2)",
    "In your code: /home/ann/train.py:41, in main: loss = model(batch)",
]


def test_the_error_and_the_innermost_line_of_the_users_own_are_told() -> None:
    assert printed_lines(f"{EVIDENCE}{TRACEBACK}\n{LAUNCHER}") == EXPECTED


def test_ranks_that_fail_alike_are_told_once_and_torchs_prefix_is_taken_off() -> None:
    ranks = "\n".join(f"[rank{rank}]: {line}" for rank in (0, 1) for line in TRACEBACK.splitlines())
    assert printed_lines(EVIDENCE + ranks) == EXPECTED


def test_what_the_launcher_raises_because_a_rank_failed_is_no_cause() -> None:
    launcher = (
        'Traceback (most recent call last):\n  File "/env/bin/deepspeed", line 6, in <module>\n    main()\n'
        "subprocess.CalledProcessError: Command '['train.py']' returned non-zero exit status 1."
    )
    assert printed_lines(f"{EVIDENCE}{TRACEBACK}\n{launcher}") == EXPECTED
    assert printed_lines(EVIDENCE + launcher)[1].startswith("Error: subprocess.CalledProcessError")


def test_a_traceback_that_has_lost_its_beginning_is_one_all_the_same() -> None:
    assert printed_lines(EVIDENCE + TRACEBACK.partition("main()\n")[2]) == EXPECTED


def test_without_a_traceback_the_last_lines_are_told() -> None:
    assert printed_lines(f"{EVIDENCE}one\ntwo\n\nthree\nSegmentation fault") == [
        "Evidence: exit status 1.",
        "Printed last: two",
        "Printed last: three",
        "Printed last: Segmentation fault",
    ]
    assert printed_lines("the kernel's oom_kill counter rose by 1") == [
        "Evidence: the kernel's oom_kill counter rose by 1."
    ]


def told(folder: Path, failure: Failure) -> list[str]:
    write_run(folder, [failed_trial(spec("zero2"), failure, Status.CRASH)])
    return [line.strip() for line in as_text(explain(load_run(folder), "zero2"), 120).splitlines()]


def test_explain_sets_each_on_a_line_of_its_own(tmp_path: Path) -> None:
    evidence = f"{EVIDENCE}{TRACEBACK}\n{LAUNCHER}"
    lines = told(tmp_path / RUN_ID, Failure(message="the command exited with 1", evidence=evidence))
    assert set(EXPECTED) <= set(lines)
    assert "Traceback" not in " ".join(lines)


def test_a_ranks_own_traceback_names_the_users_line_and_never_ours(tmp_path: Path) -> None:
    failure = Failure(message="KeyError: 'x'", exception="KeyError: 'x'", traceback=TRACEBACK)
    assert EXPECTED[2] in told(tmp_path / "theirs", failure)
    ours = TRACEBACK.replace("/home/ann/train.py", "/src/zerobench/worker/rank.py")
    assert not any(
        "In your code" in line for line in told(tmp_path / "ours", failure.model_copy(update={"traceback": ours}))
    )
