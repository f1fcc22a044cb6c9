"""What is done to libraries as soon as a program imports them, so that those that it does not use are not loaded."""

import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class OnImport(MetaPathFinder):
    """A finder that calls `done` with the name of each of `libraries` once it was imported, in the thread that imports
    it. It finds modules as the other finders do."""

    def __init__(self, libraries: Collection[str], done: Callable[[str], None]) -> None:
        self._libraries, self._done = libraries, done

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._libraries:
            return None
        finds = (getattr(finder, "find_spec", None) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (find(fullname, path, target) for find in finds if find is not None)), None)
        if spec is not None and spec.loader is not None:  # without a loader there is a folder, and nothing to run
            loader: Any = _Followed(spec, self._done)
            spec.loader = loader
        return spec


class _Followed:
    """The loader of a spec, of whatever class, until it runs the module; then the spec has its own again."""

    def __init__(self, spec: ModuleSpec, done: Callable[[str], None]) -> None:
        self._spec, self._loader, self._done = spec, spec.loader, done

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._loader, name)
        return partial(self._run, found) if name in ("exec_module", "load_module") else found

    def _run(self, run: Callable[[Any], Any], given: ModuleType | str) -> Any:
        self._spec.loader = self._loader
        if isinstance(given, ModuleType) and getattr(given, "__loader__", None) is self:
            given.__loader__ = self._loader
        loaded = run(given)
        self._done(self._spec.name)
        return loaded
