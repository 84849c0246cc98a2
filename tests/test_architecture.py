"""The rules of the house, held by reading the source: who may import what, and what nobody may do.

Each violation is reported as file:line.
"""

import ast
import re
from collections.abc import Callable, Iterable
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.tools.imports import ROOT, Import, imports_of, module_name, python_files, tree_of

PACKAGE = python_files("zerobench")
SHIPPED = python_files("zerobench", "benchmarks")  # tests make hostile input, so they may
TEXT_SUFFIXES = {".py", ".md", ".yaml", ".yml", ".toml", ".txt", ".json", ".c", ".cpp", ".map", ".sbatch", ".sh", ""}

FRAMEWORKS = {"torch", "deepspeed", "transformers", "accelerate", "triton", "horovod"}


def all_imports(files: Iterable[Path] = PACKAGE) -> list[Import]:
    return [found for path in files for found in imports_of(path)]


def outside(packages: set[str], allowed: str) -> list[str]:
    """Where one of `packages` is imported by a module that the pattern `allowed` does not match whole."""
    pattern = re.compile(allowed)
    return [
        found.where
        for found in all_imports()
        if found.package in packages and not pattern.fullmatch(module_name(found.path))
    ]


def imports_from(owner: str, target: str) -> list[str]:
    """Where a module of the package `owner` imports the package `target`."""
    return [
        found.where
        for found in all_imports()
        if belongs(module_name(found.path), owner) and belongs(found.name, target)
    ]


def belongs(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def test_the_reader_of_imports_sees_every_form_of_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.tools.imports.ROOT", tmp_path)
    path = tmp_path / "package" / "inner" / "module.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "import a.b as c\n"
        "from d import e, f\n"
        "from . import g\n"
        "from ..h import i\n"
        "if True:\n    import j\n"
        "class K:\n    import l\n"
        "def m():\n    import n\n    importlib.import_module('o.p')\n"
    )
    found = [(one.line, one.name, one.at_start) for one in imports_of(path)]
    assert found == [
        (1, "a.b", True),
        (2, "d.e", True),
        (2, "d.f", True),
        (3, "package.inner.g", True),
        (4, "package.h.i", True),
        (6, "j", True),
        (8, "l", True),
        (10, "n", False),
        (11, "o.p", False),
    ]


LIVE = r"cli\.(live|live_bars|live_predictions|live_trial|watch|status|status_view|emulate)"
ONLY_IN: dict[str, tuple[set[str], str]] = {
    "what runs within a trial or beside a script": (
        FRAMEWORKS,
        r"zerobench\.(worker|memory|tracking|emulat(e|or)\.inside)(\..*)?",
    ),
    "the worker of TensorFlow": ({"tensorflow", "keras"}, r"zerobench\.worker_tensorflow(\..*)?"),
    "the readers of the driver": ({"pynvml"}, r"zerobench\.memory\.(nvml|sampler)\w*"),
    "what is live on a screen and the renderers": ({"rich"}, rf"zerobench\.({LIVE}|report\.render(\..*)?)"),
    "the report": ({"pandas", "pyarrow"}, r"zerobench\.report(\..*)?"),
    "the charts": ({"altair", "vl_convert"}, r"zerobench\.report\.charts(\..*)?"),
    "the command line": ({"typer", "click"}, r"zerobench\.cli(\..*)?"),
}


@pytest.mark.parametrize(("packages", "allowed"), ONLY_IN.values(), ids=ONLY_IN)
def test_a_library_is_imported_in_its_place_alone(packages: set[str], allowed: str) -> None:
    assert outside(packages, allowed) == []


STARTS_WITHOUT: dict[str, tuple[str, int, set[str]]] = {
    "the worker of TensorFlow": (r"zerobench\.worker_tensorflow(\..*)?", 5, set()),
    "watching a command": (r"zerobench(\.tracking\.watch)?", 2, {"pandas", "rich"}),
    "the sampler and whatever reads the host": (
        r"zerobench\.memory\.(nvml\w*|sampler\w*|host|block_io|replay)",
        7,
        set(),
    ),
    "what runs in a job and on a login node": (r"zerobench\.slurm(\..*)?", 10, {"pandas"}),
    "the command line before a command needs them": (
        r"zerobench\.cli\.(app|run|commands(\..*)?)",
        20,
        {"pandas"},
    ),
}
"""Modules by a pattern, how many there are at least, and what they do not import beside the training frameworks."""


@pytest.mark.parametrize(("pattern", "least", "heavy"), STARTS_WITHOUT.values(), ids=STARTS_WITHOUT)
def test_no_training_framework_is_reached_at_the_start(pattern: str, least: int, heavy: set[str]) -> None:
    files = [path for path in PACKAGE if re.fullmatch(pattern, module_name(path))]
    assert len(files) >= least, "the pattern has lost its files"
    assert chains_to(FRAMEWORKS | heavy, files) == []


UPWARDS = {
    "figures": ("tables", "charts", "render", "frames", "headline", "terminal", "page", "markdown"),
    "tables": ("charts", "render", "frames", "headline", "terminal", "page", "markdown"),
    "charts": ("headline", "terminal", "page", "markdown"),
    "render": ("charts", "frames", "headline", "terminal", "page", "markdown.report", "markdown.setting"),
}
"""Parts of the report by what they may not look up to: figures make tables and charts, renderers set them, and
documents say which of them come in which order."""


@pytest.mark.parametrize("lower", UPWARDS)
def test_in_the_report_no_arrow_runs_upwards(lower: str) -> None:
    found = [
        line
        for upper in UPWARDS[lower]
        for line in imports_from(f"zerobench.report.{lower}", f"zerobench.report.{upper}")
    ]
    assert found == []


def test_nobody_but_the_worker_imports_the_worker() -> None:
    strangers = [
        found.where
        for found in all_imports()
        for worker in ("zerobench.rank.loop", "zerobench.rank.tensorflow")
        if belongs(found.name, worker) and not belongs(module_name(found.path), worker)
    ]
    assert strangers == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    """In functions neither: two modules that need each other are one, or lack a third."""
    assert circles(import_graph(lambda module: module)) == []


def test_no_package_imports_itself_by_way_of_others() -> None:
    """What a trial is knows neither DeepSpeed's keys nor how trials come about, which know it: and so for all."""
    graph = import_graph(lambda module: ".".join(module.split(".")[:2]))
    assert {"zerobench.config.trial", "zerobench.config.deepspeed"} <= graph["zerobench.config.sweep"]
    assert circles(graph) == []


def import_graph(owner: Callable[[str], str]) -> dict[str, set[str]]:
    """Which owners of modules import which others."""
    files = {module_name(path): path for path in PACKAGE}
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        imported = {module_of(found.name, files) for found in imports_of(path)}
        graph.setdefault(owner(name), set()).update(owner(other) for other in imported if other in files)
    return {name: imported - {name} for name, imported in graph.items()}


def module_of(name: str, files: Iterable[str]) -> str:
    """The module that an import of `name` reads: the name itself, or what holds it."""
    return name if name in files else name.rpartition(".")[0]


def circles(graph: dict[str, set[str]]) -> list[str]:
    """One way round, for each module from which one leads back."""
    left = dict(graph)
    found = []
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            round_trip = error.args[1]
            found.append(" > ".join(reversed(round_trip)))
            left = {name: imported for name, imported in left.items() if name not in round_trip}
        else:
            return found


def test_a_circle_of_imports_is_found_with_the_way_round() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) in (
        ["a > b > c > a"],
        ["b > c > a > b"],
        ["c > a > b > c"],
    )
    assert circles({"a": {"b", "c"}, "b": {"c"}}) == []


def test_run_and_report_do_not_know_each_other() -> None:
    assert imports_from("zerobench.launch.run", "zerobench.report") == []
    assert imports_from("zerobench.report", "zerobench.launch.run") == []


def test_searches_join_run_and_report_and_know_no_command_line() -> None:
    assert imports_from("zerobench.app.search", "zerobench.app.terminal") == []
    lower = (
        "zerobench.launch.run",
        "zerobench.report",
        "zerobench.config.trial",
        "zerobench.config.sweep",
        "zerobench.launch.slurm",
    )
    assert [line for low in lower for line in imports_from(low, "zerobench.app.search")] == []


def test_slurm_builds_on_the_runner_and_nobody_below_the_command_line_knows_of_slurm() -> None:
    lower = ("running", "spec", "sweeping", "memory", "worker", "tracking")
    assert [line for low in lower for line in imports_from(f"zerobench.{low}", "zerobench.launch.slurm")] == []
    assert imports_from("zerobench.launch.slurm", "zerobench.report") == []


def test_what_is_asked_and_what_was_found_know_neither_run_nor_report() -> None:
    lower = ("spec", "ds_config", "sweeping", "memory", "records", "store")
    upper = ("running", "report", "cli")
    assert [
        line for low in lower for high in upper for line in imports_from(f"zerobench.{low}", f"zerobench.{high}")
    ] == []
    assert imports_from("zerobench.config.trial", "zerobench.rank.ledger") == []


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("cli.status", {"pandas", "numpy", "pynvml"}),
        ("cli.commands.status", {"pandas", "numpy", "pynvml"}),
        ("cli.explain", {"pandas", "pyarrow", "scipy"}),
        ("report.terminal.show", {"pandas", "pyarrow", "numpy"}),
    ],
)
def test_commands_that_read_runs_and_jobs_start_on_a_login_node(module: str, heavy: set[str]) -> None:
    [file] = [path for path in PACKAGE if module_name(path) == f"zerobench.{module}"]
    assert chains_to(FRAMEWORKS | heavy, [file]) == []


def chains_to(packages: set[str], files: Iterable[Path]) -> list[str]:
    """How the start of each of `files` comes to import one of `packages`, through files of the project."""
    by_name = {module_name(path): path for path in PACKAGE}
    chains = []
    waiting = [(path, module_name(path)) for path in files]
    seen = set()
    while waiting:
        path, chain = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        for found in imports_of(path):
            if not found.at_start:
                continue
            if found.package in packages:
                chains.append(f"{found.where} (reached by {chain})")
            waiting += [(by_name[name], f"{chain} > {name}") for name in ancestry(found.name) if name in by_name]
    return chains


def ancestry(name: str) -> list[str]:
    """`a`, `a.b`, `a.b.c`: the packages that an import of a.b.c runs, and the module itself."""
    parts = name.split(".")
    return [".".join(parts[: n + 1]) for n in range(len(parts))]


def calls(files: Iterable[Path], offends: Callable[[str, ast.Call], bool]) -> list[str]:
    """Where a call `offends`, given the called name as it is written and the call."""
    return [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)[:80]}"
        for path in files
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and offends(ast.unparse(node.func), node)
    ]


def has_true(call: ast.Call, option: str) -> bool:
    """Whether a call gives `option` anything but False."""
    given = [keyword.value for keyword in call.keywords if keyword.arg == option]
    return any(not (isinstance(value, ast.Constant) and value.value is False) for value in given)


def test_nobody_hands_text_to_a_shell_or_to_the_interpreter() -> None:
    forbidden = {"eval", "exec", "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}
    assert calls(SHIPPED, lambda name, call: name in forbidden or has_true(call, "shell")) == []


def test_nobody_unpickles() -> None:
    importing = {"pickle", "_pickle", "cloudpickle", "dill", "shelve", "joblib", "marshal"}
    found = [one for one in all_imports(SHIPPED) if one.package in importing]
    assert [one.where for one in found if one.name != "pickle.dumps"] == []  # writing one runs nothing
    assert calls(SHIPPED, lambda name, call: name == "torch.load" and not has_true(call, "weights_only")) == []
    assert calls(SHIPPED, lambda _, call: has_true(call, "allow_pickle")) == []


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        (r"(?i)\bissues?\s*(no\.?|number)?\s*#?\s*\d", "an issue's number"),
        (r"(?<![\w.)}\]*-])/(work|root)/", "a path of somebody's machine"),
        (r"\.\./shared\b|\bshared/(design|gpu|nvml_standin|slurm_cluster)", "a path outside the project"),
        (r"(?i)\b(pypi|registry|artifactory|nexus|mirror)[\w-]*\.(?!org\b)[\w.-]+/(simple|pypi|v2)\b", "a registry"),
        (r"(?i)\bas (asked|requested|required) (by|in) the (issue|task|brief)\b", "who asked"),
    ],
)
def test_the_project_speaks_of_itself_alone(pattern: str, what: str) -> None:
    searched = re.compile(pattern)
    assert [
        f"{path.relative_to(ROOT)}:{number}: {what}: {line.strip()[:80]}"
        for path in text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1)
        if searched.search(line)
    ] == []


def text_files() -> list[Path]:
    """What ships and what is read, but for this file and for kept runs, which say where they ran."""
    folders = ("zerobench", "tests", "benchmarks", "ds_configs", "slurm", ".ci")
    inside = [path for folder in folders for path in sorted((ROOT / folder).rglob("*")) if path.is_file()]
    above = [path for path in sorted(ROOT.iterdir()) if path.is_file()]
    skipped = {Path(__file__).resolve()}
    return [path for path in above + inside if path.suffix in TEXT_SUFFIXES and path not in skipped]
