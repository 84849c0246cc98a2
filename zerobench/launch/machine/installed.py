"""Check for the packages that trials need, before anything starts.

A login node has no torch and no DeepSpeed, and needs none to plan by formula, submit, watch and report. If a trial
would still run there, one line names the missing packages, instead of every trial ending in a traceback.
"""

import importlib.metadata
import re
from collections.abc import Iterable

from zerobench.common.distribution import DISTRIBUTION
from zerobench.common.errors import UserError
from zerobench.config.derived.availability import FRAMEWORKS
from zerobench.config.hardware.toolchain import package_folder
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.emulator.emulator import find_emulator


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
        quoted = " ".join(f"'{requirement(name)}'" for name in missing)
        advice = (
            f"python -m pip install {quoted}; on a login node, zerobench submit runs them "
            "elsewhere, and formulas need none (zerobench plan --formula, --set evidence=formula)"
        )
        raise UserError(
            f"{_listed(missing)} {are} not installed here, and {_listed(sorted(needing))} trials need {them}: "
            f"{instead or advice}"
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
