"""Check for the packages that trials need, before anything starts.

A login node has no torch and no DeepSpeed, and needs none to plan by formula, submit, watch and report. If a trial
would still run there, one line names the missing packages, instead of every trial ending in a traceback.
"""

import importlib.metadata
import re
from collections.abc import Iterable, Mapping

from zerobench.common.distribution import DISTRIBUTION, release_numbers
from zerobench.common.errors import UserError
from zerobench.common.training_python import training_python
from zerobench.config.derived.availability import FRAMEWORKS
from zerobench.config.hardware.toolchain import package_folder
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.emulator.emulator import find_emulator

INSIDE: Mapping[str, tuple[int, ...]] = {"pydantic": (2, 8), "psutil": (5, 0), "PyYAML": (5, 1)}
"""What zerobench imports beside torch in a process of the training Python, each with its first release that does."""


def check_installed(trials: Iterable[TrialSpec], instead: str | None = None) -> None:
    """Refuse, before anything is started, `trials` whose packages are not installed here.

    Raises UserError, one line: the missing packages or emulator, and the remedy: `instead`, by default how to install
    or avoid them.
    """
    chosen = list(trials)
    if any(trial.evidence is Evidence.EMULATED for trial in chosen):
        find_emulator()
    needing = {trial.evidence for trial in chosen} - {Evidence.FORMULA}
    missing = [name for name in FRAMEWORKS if package_folder(name) is None] if needing else []
    if missing:
        are, them = ("is", "it") if len(missing) == 1 else ("are", "them")
        python = training_python()
        raise UserError(
            f"{_listed(missing)} {are} not installed {'here' if python.is_own else f'for {python.python}'}, and "
            f"{_listed(sorted(needing))} trials need {them}: {instead or _install_advice(missing)}"
        )
    if needing:
        check_inside()


def check_inside() -> None:
    """Refuse, before anything is started, a training Python that lacks what zerobench's own part in it imports.

    Raises UserError, one line: what is missing or too old, and the command that installs it.
    """
    python = training_python()
    lacking = [name for name in INSIDE if not _is_new_enough(name, python.version_of(name))]
    if python.is_own or not lacking:
        return
    versions = ", ".join(f"{name} {python.version_of(name) or '(not installed)'}" for name in lacking)
    quoted = " ".join(f"'{name}>={'.'.join(map(str, INSIDE[name]))}'" for name in lacking)
    raise UserError(
        f"{python.python} has {versions}; zerobench needs it beside a script there, as DeepSpeed and transformers do: "
        f"{python.python} -m pip install {quoted}"
    )


def _is_new_enough(name: str, version: str | None) -> bool:
    return version is not None and release_numbers(version)[:2] >= INSIDE[name]


def _install_advice(missing: list[str]) -> str:
    quoted = " ".join(f"'{requirement(name)}'" for name in missing)
    python = training_python()
    return (
        f"{'python' if python.is_own else python.python} -m pip install {quoted}; or give the interpreter of an "
        "environment that has them (--python PATH); on a login node, zerobench submit runs them "
        "elsewhere, and formulas need none (zerobench plan --formula, --set evidence=formula)"
    )


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def requirement(name: str) -> str:
    """Return `name` with the releases that zerobench's metadata allows, as pip takes it; bare if it has none.

    The core's and `[run]`'s count: another extra names what most users do without.
    """
    try:
        known = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        known = []
    entry = re.compile(rf"({re.escape(name)}(?![\w.-])[^;]*?)\s*(;\s*extra\s*==\s*['\"]run['\"]\s*)?")
    return next((found[1] for found in map(entry.fullmatch, known) if found), name)
