"""The rules of the house, held by reading the source: who may import what, and what nobody may do.

Each violation is reported as file:line.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator
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


IN_TRAINING = r"rank\.(?!nvml|tensorflow)\w+|launch\.tracking|launch\.emulate\.inside|emulator\.inside"
LIVE = r"app\.terminal\.(live|live_predictions|live_trial|watch|status)"
ONLY_IN: dict[str, tuple[set[str], str]] = {
    "what runs within a trial or beside a script": (FRAMEWORKS, rf"zerobench\.({IN_TRAINING})(\..*)?"),
    "the rank of TensorFlow": ({"tensorflow", "keras"}, r"zerobench\.rank\.tensorflow(\..*)?"),
    "the readers of the driver": ({"pynvml"}, r"zerobench\.rank\.nvml\.(nvml|sampler)\w*"),
    "what is live on a screen and what sets tables": ({"rich"}, rf"zerobench\.({LIVE}|report\.documents\.terminal)"),
    "the report": ({"pandas", "pyarrow"}, r"zerobench\.report(\..*)?"),
    "the charts": ({"altair", "vl_convert"}, r"zerobench\.report\.charts(\..*)?"),
    "the command line": ({"typer", "click"}, r"zerobench\.app\.(commands|terminal)(\..*)?"),
}


@pytest.mark.parametrize(("packages", "allowed"), ONLY_IN.values(), ids=ONLY_IN)
def test_a_library_is_imported_in_its_place_alone(packages: set[str], allowed: str) -> None:
    assert outside(packages, allowed) == []


STARTS_WITHOUT: dict[str, tuple[str, int, set[str]]] = {
    "the rank of TensorFlow": (r"zerobench\.rank\.tensorflow(\..*)?", 5, set()),
    "watching a command": (r"zerobench(\.launch\.tracking\.watch)?", 2, {"pandas", "rich"}),
    "the sampler and whatever reads the host": (
        r"zerobench\.(rank\.(nvml\.(nvml|sampler)\w*|ledger\.(host|replay))|records\.nvml_samples|common\.block_io)",
        7,
        set(),
    ),
    "what runs in a job and on a login node": (r"zerobench\.launch\.slurm(\..*)?", 10, {"pandas"}),
    "the command line before a command needs them": (
        r"zerobench\.app\.(terminal\.(app|run)|commands(\..*)?)",
        20,
        {"pandas"},
    ),
    "names that older installations and runs start": (
        r"zerobench\.(cli|errors|pytest_plugin|worker|worker_tensorflow\.launcher|slurm\.job)",
        6,
        set(),
    ),
}
"""Modules by a pattern, how many there are at least, and what they do not import beside the training frameworks."""


@pytest.mark.parametrize(("pattern", "least", "heavy"), STARTS_WITHOUT.values(), ids=STARTS_WITHOUT)
def test_no_training_framework_is_reached_at_the_start(pattern: str, least: int, heavy: set[str]) -> None:
    files = [path for path in PACKAGE if re.fullmatch(pattern, module_name(path))]
    assert len(files) >= least, "the pattern has lost its files"
    assert chains_to(FRAMEWORKS | heavy, files) == []


WINGS = ("app", "launch", "report", "rank", "emulator", "estimate", "records", "config", "common")
"""From the top down: each may import those behind it. What starts processes and what reads records back stand side by
side, and do not know each other."""

IN_REPORT = ("documents", "charts", "export", "tables", "explain", "figures", "words")
"""The same within the report: a document is made of charts and tables, and these of figures."""

KEPT_NAMES = ("cli", "errors", "pytest_plugin", "worker", "worker_tensorflow", "slurm")
"""Older names beside the wings, for installations, runs and programs that say them: nobody here does."""


def test_every_module_stands_in_a_wing_or_keeps_an_older_name() -> None:
    beside = {path.relative_to(ROOT / "zerobench").with_suffix("").parts[0] for path in PACKAGE}
    assert beside == {"__init__", "__main__", *WINGS, *KEPT_NAMES}
    assert [line for name in KEPT_NAMES for line in imports_from("zerobench", f"zerobench.{name}")] == []


@pytest.mark.parametrize(
    ("place", "order"),
    [("zerobench", WINGS), ("zerobench.report", IN_REPORT)],
    ids=["wings", "report"],
)
def test_an_arrow_goes_down_only(place: str, order: tuple[str, ...]) -> None:
    graph = import_graph(lambda path: module_name(path).removeprefix(f"{place}.").partition(".")[0])
    assert set(order) <= set(graph)
    assert [
        f"{one} imports {other}"
        for number, one in enumerate(order)
        for other in sorted(graph[one] & set(order[:number]))
    ] == []


def test_what_starts_processes_and_what_reads_records_back_do_not_know_each_other() -> None:
    assert imports_from("zerobench.launch", "zerobench.report") == []
    for started in ("launch", "rank", "emulator"):
        assert imports_from("zerobench.report", f"zerobench.{started}") == []


CLOSED_FORM_OF_TIME = {
    "zerobench.report.explain.time": "the lower bound of a step, term by term",
    "zerobench.report.explain.what_if": "a trial's step at other rates",
    "zerobench.report.tables.plan_answer": "why a row of a plan has no time",
    "zerobench.report.figures.make": "the expected step and the lower bound of a trial, and of a row of a plan",
    "zerobench.report.figures.trial": "the type of that lower bound",
    "zerobench.report.figures.predictions.times": "the same beside the measured one",
    "zerobench.report.figures.calibrated_time": "constants of a machine, which are fitted with it",
    "zerobench.report.export.step_timeline": "replays of trials, whose kernels are timed by rates fitted to a block",
    "zerobench.report.charts.step_streams": "the same",
    "zerobench.report.charts.roofline": "the same",
}
"""Modules outside `estimate/` that import it, and what for: the list only gets shorter."""


def test_the_clock_knows_no_closed_form_of_a_step_and_few_others_do() -> None:
    """A step that an engine issued is replayed; what is estimated without one stays in its room."""
    assert imports_from("zerobench.estimate.clock", "zerobench.estimate.time") == []
    assert imports_from("zerobench.estimate.time", "zerobench.estimate.clock") != []
    importers = {
        module_name(found.path)
        for found in all_imports()
        if belongs(found.name, "zerobench.estimate.time") and not belongs(module_name(found.path), "zerobench.estimate")
    }
    assert importers == set(CLOSED_FORM_OF_TIME)


def test_nobody_imports_what_trains() -> None:
    """A launcher starts it by its name. The ledger and NVML are for whoever else is in a training process."""
    trains = ("loop", "optimizers", "strategies", "tensorflow", "training", "worlds")
    strangers = [
        found.where
        for found in all_imports()
        for part in trains
        if belongs(found.name, f"zerobench.rank.{part}")
        and not belongs(module_name(found.path), "zerobench.rank")
        and found.path.relative_to(ROOT / "zerobench").parts[0] not in KEPT_NAMES
    ]
    assert strangers == []
    assert [line for part in trains for line in imports_from("zerobench.rank.ledger", f"zerobench.rank.{part}")] == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    """In functions neither: two modules that need each other are one, or lack a third."""
    assert circles(import_graph(module_name)) == []


def test_no_folder_imports_itself_by_way_of_others() -> None:
    """What a trial is knows neither DeepSpeed's keys nor how trials come about, which know it: and so for all."""
    graph = import_graph(lambda path: path.parent.relative_to(ROOT).as_posix())
    assert {"zerobench/config/trial", "zerobench/config/deepspeed"} <= graph["zerobench/config/sweep"]
    graph.pop("zerobench")  # the face: what it hands on, and the version that others read of it
    assert circles(graph) == []


def test_no_two_folders_import_each_other_whatever_their_depth() -> None:
    """A folder stands for all below it; files beside folders count as a folder of their own."""
    arrows = {
        pair
        for importer, imported in arrows_between(PACKAGE)
        if not {importer.parent, imported.parent} & {ROOT / "zerobench"} and (pair := parted(importer, imported))
    }
    assert ("zerobench/app", "zerobench/config") in arrows
    assert ("zerobench/config/sweep", "zerobench/config/trial") in arrows
    assert [f"{one} and {other}" for one, other in sorted(arrows) if one < other and (other, one) in arrows] == []


BEHIND_THE_WALL = "zerobench.estimate.memory"
WHO_ASKS_CLOSED_FORMS_OF_MEMORY: dict[str, str] = {
    "app.search.formula": "`--formula`, and the ranking of candidates before they are played",
    "launch.run.simulations": "the world of `--formula`, which leaves records as the other worlds do",
    "report.explain.category": "explains records of older versions and of `--formula`, which have no parts",
    "rank.loop.forked_trial": "traffic of the micro-batches of a step that were not played, which no record has",
    "rank.loop.rank": "sentences on the effects of DeepSpeed's keys, which every record keeps (`departures`)",
    "launch.tracking.work": "the same sentences for a user's own script",
}
"""Modules outside `estimate/`, each with its reason. A figure that is shown is read from a record: the list only
becomes shorter."""


def test_closed_forms_of_memory_stand_behind_a_wall() -> None:
    asking = {
        module_name(found.path).removeprefix("zerobench.")
        for found in all_imports()
        if belongs(found.name, BEHIND_THE_WALL) and not belongs(module_name(found.path), "zerobench.estimate")
    }
    assert asking == set(WHO_ASKS_CLOSED_FORMS_OF_MEMORY)


def parted(importer: Path, imported: Path) -> tuple[str, str] | None:
    """The folders of two files at the depth at which their ways part; None where they share one."""
    ways = [path.parent.relative_to(ROOT).parts for path in (importer, imported)]
    if ways[0] == ways[1]:
        return None
    common = next((n for n, (one, other) in enumerate(zip(*ways, strict=False)) if one != other), min(map(len, ways)))
    one, other = ("/".join(way[: common + 1]) + ("" if len(way) > common else "/.") for way in ways)
    return one, other


def test_two_files_are_told_apart_by_the_folders_in_which_their_ways_part() -> None:
    deep, loose, other = (ROOT / "zerobench" / name for name in ("a/b/c/one.py", "a/b/two.py", "a/d/three.py"))
    assert parted(deep, other) == ("zerobench/a/b", "zerobench/a/d")
    assert parted(deep, loose) == ("zerobench/a/b/c", "zerobench/a/b/.")
    assert parted(loose, loose.with_name("four.py")) is None


def import_graph(owner: Callable[[Path], str]) -> dict[str, set[str]]:
    """Which owners of files import which others."""
    graph: dict[str, set[str]] = {owner(path): set() for path in PACKAGE}
    for importer, imported in arrows_between(PACKAGE):
        graph[owner(importer)].add(owner(imported))
    return {name: imported - {name} for name, imported in graph.items()}


def arrows_between(paths: Iterable[Path]) -> Iterator[tuple[Path, Path]]:
    """Each import of one of these files by another."""
    files = {module_name(path): path for path in paths}
    for path in files.values():
        imported = {module_of(found.name, files) for found in imports_of(path)}
        yield from ((path, files[name]) for name in sorted(imported) if name in files)


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


def test_searches_know_no_command_line() -> None:
    assert imports_from("zerobench.app.search", "zerobench.app.terminal") == []
    assert imports_from("zerobench.app.search", "zerobench.app.commands") == []
    assert imports_from("zerobench.app.terminal", "zerobench.app.commands") == []


def test_slurm_builds_on_the_runner_and_nobody_below_the_command_line_knows_of_slurm() -> None:
    lower = ("machine", "run", "setup", "tracking", "emulate")
    assert [line for low in lower for line in imports_from(f"zerobench.launch.{low}", "zerobench.launch.slurm")] == []


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("app.terminal.status", {"pandas", "numpy", "pynvml"}),
        ("app.commands.status", {"pandas", "numpy", "pynvml"}),
        ("app.terminal.explain", {"pandas", "pyarrow", "scipy"}),
        ("report.documents.show", {"pandas", "pyarrow", "numpy"}),
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
