"""What is done to libraries as soon as a program imports them, so that those that it does not use are not loaded."""

import sys
from collections.abc import Callable, Collection, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


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
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is not None and isinstance(spec.loader, Loader):
            self._follow(fullname, spec.loader)
        return spec

    def _follow(self, name: str, loader: Loader) -> None:
        """Have the loader, which may be that of other modules too, say that it has run the module."""
        run = loader.exec_module

        def followed(module: ModuleType) -> None:
            run(module)
            if module.__name__ == name:
                loader.exec_module = run  # type: ignore[method-assign]
                self._done(name)

        loader.exec_module = followed  # type: ignore[method-assign]
