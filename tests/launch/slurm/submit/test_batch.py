"""Batch scripts: what is filled into the templates, against golden files, and that nothing filled in is ever run.

Set UPDATE_GOLDEN=1 to write the files anew, then read the difference.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.tools.golden import as_looked_at
from zerobench.common.errors import UserError
from zerobench.launch.slurm.jobs import JobKind
from zerobench.launch.slurm.options import SubmitOptions
from zerobench.launch.slurm.submit.batch import array_script, log_pattern, render, report_script, sbatch_word, template
from zerobench.launch.slurm.submit.grouping import JobArray
from zerobench.records.folder import RunFolder

GOLDEN = Path(__file__).parent / "golden"
RUN = RunFolder(Path("/scratch/reports/stages_20260101-120000"))
PYTHON = Path("/shared/venv/bin/python")
HOSTILE = [
    "$(touch ran)",
    "`touch ran`",
    "; touch ran;",
    "' ; touch ran; '",
    '" ; touch ran; "',
    "\\'; touch ran #",
    "&& touch ran",
    "| touch ran",
    "${x:-$(touch ran)}",
    "> ran",
    "a b  c",
    "-n",
    "--wrap=touch ran",
    "# Settings: end",
    "%A",
    "*",
    "~",
    "ünï",
]


def array(kind: JobKind = JobKind.TRIALS, nodes: int = 1, tasks: int = 3) -> JobArray:
    return JobArray(kind, nodes, [[f"llama-zero{i}-n{nodes}-0a1b2c3d-r0"] for i in range(tasks)], 7500)


def sbatch_words(line: str) -> list[str]:
    """A line's options, read as sbatch reads them (slurm src/sbatch/opt.c, _get_argument)."""
    assert not re.search("hetjob|packjob", line, re.IGNORECASE), "sbatch would begin another job here"
    rest = line.removeprefix("#SBATCH")
    words: list[str] = []
    while rest := rest.lstrip(" \t"):
        word, quote, at = "", "", 0
        while at < len(rest) and (quote or not rest[at].isspace()):
            if rest[at] == "\\":
                at += 1
                if at < len(rest) and (quote or not rest[at].isspace()):
                    word += rest[at]
                    at += 1
                continue
            if rest[at] == quote or (not quote and rest[at] in "'\""):
                quote = "" if quote else rest[at]
            elif rest[at] == "#" and not quote:
                return [*words, word] if word else words
            else:
                word += rest[at]
            at += 1
        assert not quote, "sbatch would end here: an unmatched quote"
        words.append(word)
        rest = rest[at:]
    return words


def options_of(text: str) -> list[str]:
    return [word for line in text.splitlines() if line.startswith("#SBATCH") for word in sbatch_words(line)]


def test_an_array_on_gpu_nodes_is_the_golden_one() -> None:
    options = SubmitOptions(
        nodes=4,
        gpus_per_node=8,
        cpus_per_node=96,
        partition="gpu",
        cpu_partition="cpu",
        account="project",
        qos="high",
        constraint="h100&nvlink",
        reservation="maintenance",
        mem="900G",
        container="/images/zerobench v2.sqsh",
        throttle=4,
        sbatch=("comment=where bytes go", "exclude=n[1-3]", "no-requeue"),
    )
    as_looked_at(array_script(RUN, "4-nodes", array(nodes=4), options, python=PYTHON), GOLDEN / "array.sbatch")
    predictions = array_script(RUN, "predictions", array(JobKind.PREDICTIONS, tasks=1), options, python=PYTHON)
    as_looked_at(predictions, GOLDEN / "predictions.sbatch")
    as_looked_at(report_script(RUN, "report", [101, 102], options, python=PYTHON), GOLDEN / "report.sbatch")


def test_predictions_are_started_by_our_python_under_the_ranks_and_outside_of_their_container() -> None:
    one = array(JobKind.PREDICTIONS, tasks=1)
    options = SubmitOptions(gpus_per_node=8, python="/env/bin/python")
    beside = array_script(RUN, "predictions", one, options, python=PYTHON)
    assert f"\npython={PYTHON} " in beside
    assert "\nworker_python=/env/bin/python " in beside
    within = options.model_copy(update={"container": "image"})
    assert f"\npython={PYTHON} " in array_script(RUN, "predictions", one, within, python=PYTHON)
    assert "\nworker_python= " in array_script(RUN, "predictions", one, within, python=PYTHON)
    assert "\ncontainer= " in array_script(RUN, "predictions", one, within, python=PYTHON)


def test_an_array_on_nodes_without_gpus_is_the_golden_one() -> None:
    script = array_script(RUN, "1-node", array(), SubmitOptions(gpus_per_node=0), python=PYTHON)
    as_looked_at(script, GOLDEN / "array_cpu.sbatch")
    assert not any(word.startswith("--gpus-per-node") for word in options_of(script))


@pytest.mark.parametrize("name", ["array", "report", "trial"])
def test_a_template_with_nothing_filled_in_is_itself(name: str) -> None:
    assert render(template(name), {}, {}) == template(name)


@pytest.mark.parametrize("value", HOSTILE)
def test_sbatch_reads_every_value_back_as_it_was_given(value: str) -> None:
    for text in (value, f"hetjob {value} PackJob", f"{value}\\"):
        script = render(template("array"), {"comment": text, "partition": text, "time": text}, {})
        words = options_of(script)
        usual = [word for word in options_of(template("array")) if not word.startswith("--time=")]
        assert sorted(words) == sorted([*usual, f"--time={text}", f"--partition={text}", f"--comment={text}"])


@pytest.mark.parametrize("value", HOSTILE)
def test_bash_reads_every_setting_back_and_runs_none_of_it(value: str, tmp_path: Path) -> None:
    runner = tmp_path / "python; touch ran"
    runner.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    runner.chmod(0o755)
    names = ("run", "tasks", "worker_python", "launcher", "cpus_per_node", "gpus_per_node", "container")
    settings = dict.fromkeys(names, value)
    script = tmp_path / "script"
    script.write_text(render(template("array"), {"job-name": value}, settings | {"python": str(runner)}))
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run(["bash", str(script)], cwd=work, capture_output=True, text=True, check=True, timeout=30)
    given = ["--launcher", value, "--worker-python", value, "--cpus-per-node", value, "--gpus-per-node", value]
    within = ["--container", value, "--container-runtime", "pyxis"]
    expected = ["-m", "zerobench.launch.slurm.job", value, value, *given, *within]
    assert done.stdout.splitlines() == expected
    assert list(work.iterdir()) == []


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\0b", "a\x1bb", "a\x85b", "a\u2028b", "a\udc80b"])
def test_a_character_that_would_end_a_line_is_refused(value: str) -> None:
    with pytest.raises(UserError, match="comment"):
        sbatch_word("comment", value)
    with pytest.raises(UserError, match="run"):
        render(template("array"), {}, {"run": value})


def test_a_percent_sign_in_the_log_folder_stands_for_itself() -> None:
    assert log_pattern(Path("/a%j/b"), "x-%A_%a.out") == "/a%%j/b/x-%A_%a.out"
    with pytest.raises(UserError, match="backslash"):
        log_pattern(Path("/a\\b"), "x-%j.out")


def test_an_option_goes_where_the_template_has_it_and_others_follow_the_last() -> None:
    options = ["#SBATCH --time=1  # long", "##SBATCH --qos=x", "#SBATCH --mem=0"]
    text = "\n".join(["#!/bin/bash", *options, "", "# Settings: begin", "# Settings: end"])
    changed = render(text, {"time": "2", "qos": "y", "mem": False, "nice": True}, {})
    lines = changed.splitlines()[1:]
    assert lines[:4] == ["#SBATCH --time=2  # long", "#SBATCH --qos=y", "#SBATCH --nice", ""]


def test_a_setting_that_the_template_has_not_is_a_mistake_of_ours() -> None:
    with pytest.raises(KeyError, match="colour"):
        render(template("array"), {}, {"colour": "red"})


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("name", ["array", "report", "trial"])
def test_shellcheck_finds_nothing_in_the_templates(name: str, tmp_path: Path) -> None:
    script = tmp_path / name
    script.write_text(template(name), encoding="utf-8")
    done = subprocess.run(["shellcheck", str(script)], capture_output=True, text=True, check=False)
    assert done.stdout == ""
