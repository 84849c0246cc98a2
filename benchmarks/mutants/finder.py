"""Puts a mutant in its module's place, in this process and in those that it starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def put_in_place(name: str, path: Path, source: str) -> None:
    """Whoever imports the module `name` of the file `path` gets `source`."""
    sys.meta_path.insert(0, _Finder(_Loader(name, path, source)))


def hand_on(name: str, path: Path, source: str, folder: Path) -> None:
    """The same in every Python that is started from here on: each imports `sitecustomize` before all else."""
    code = (
        f"from pathlib import Path\nfrom {__name__} import put_in_place\n"
        f"put_in_place({name!r}, Path({str(path)!r}), {source!r})\n"
    )
    (folder / "sitecustomize.py").write_text(code, encoding="utf-8")
    places = (str(folder), str(ROOT), os.environ.get("PYTHONPATH"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, places))


class _Loader(SourceFileLoader):
    """Reads another source than the file's, and leaves and takes no bytecode."""

    def __init__(self, name: str, path: Path, source: str) -> None:
        super().__init__(name, str(path))
        self._source = source.encode()

    def get_data(self, path: str | bytes) -> bytes:  # noqa: ARG002
        """The mutant's source."""
        return self._source

    def path_stats(self, path: str) -> dict[str, float]:
        """Nothing that bytecode could be compared with."""
        raise OSError(path)


class _Finder(MetaPathFinder):
    """Gives the mutant where its module is imported."""

    def __init__(self, loader: _Loader) -> None:
        self._loader = loader

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """The mutant's, where it is asked for."""
        if fullname != self._loader.name:
            return None
        place = Path(self._loader.path)
        packages = [str(place.parent)] if place.name == "__init__.py" else None
        return spec_from_file_location(fullname, place, loader=self._loader, submodule_search_locations=packages)
