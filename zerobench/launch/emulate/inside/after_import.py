"""Does something to a module of somebody else's as soon as the user's script has imported it, and not before.

A script may set variables that a library reads when it is imported; so nothing is imported ahead of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

Then = Callable[[ModuleType], None]


def after_import(name: str, then: Then) -> None:
    """Call `then` with the module `name` once it has been imported; at once where it has been already."""
    if name in sys.modules:
        then(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, then))


class _Finder(MetaPathFinder):
    """Finds one module as Python would, until it has been loaded."""

    def __init__(self, name: str, then: Then) -> None:
        self._name = name
        self._then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's spec, with a loader that goes on to `then`."""
        if fullname != self._name:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._loaded)
        return spec

    def _loaded(self, module: ModuleType) -> None:
        """Only now: libraries ask for a module's spec to see whether it is installed."""
        sys.meta_path.remove(self)
        self._then(module)


class _Loader(Loader):
    def __init__(self, inner: Loader, then: Then) -> None:
        self._inner = inner
        self._then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the inner loader."""
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As the inner loader, which is the module's own from then on; and `then`."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        module.__loader__ = self._inner
        self._inner.exec_module(module)
        self._then(module)
