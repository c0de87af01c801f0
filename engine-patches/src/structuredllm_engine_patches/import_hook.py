"""Run something right after a module was imported, without importing it oneself.

vLLM calls plugins in processes that never need the engine core's module (workers, the model registry's
helper), and importing it there would cost seconds. The finder sits in `sys.meta_path`, which is also where
a process-wide thing of ours is found again: there is no module global.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Callback = Callable[[], None]


class ImportHook(MetaPathFinder):
    """Calls registered callbacks after their module was executed; an error of one fails the import.

    Attributes:
        owner: whose hook it is (the `Installation`).
    """

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self._callbacks: dict[str, list[Callback]] = {}

    def when_imported(self, module: str, callback: Callback) -> None:
        """Call `callback` now if `module` is imported, else right after it will be."""
        if module in sys.modules:
            callback()
        else:
            self._callbacks.setdefault(module, []).append(callback)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the other finders' spec of a module that is waited for, with its loader wrapped."""
        if fullname not in self._callbacks:
            return None
        for finder in sys.meta_path:
            find_spec = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find_spec is None else find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _CallingLoader(spec.loader, lambda: self._call(fullname))
                return spec
        return None

    def _call(self, module: str) -> None:
        """Call a module's callbacks; all stay registered until all went well: a second try fails too."""
        for callback in self._callbacks[module]:
            callback()
        del self._callbacks[module]


class _CallingLoader(Loader):
    """The real loader, then the callbacks; the module keeps the real loader."""

    def __init__(self, loader: Loader, callback: Callback) -> None:
        self._loader = loader
        self._callback = callback

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._callback()


def find_hook() -> ImportHook | None:
    """Return this process's hook, or None."""
    return next((finder for finder in sys.meta_path if isinstance(finder, ImportHook)), None)
