"""The reference's modules by import: a finder that answers for their names with our modules."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from tokenloom.megatron.module_names import EXPORTING, OURS, PACKAGES


def exported(name: str) -> Any:
    """Returns a class of our data modules: what `megatron.core.datasets` gives for a name that it does not have."""
    return getattr(import_module(f"tokenloom.{EXPORTING}"), name)


class Finder(MetaPathFinder):
    """Finds our modules under the reference's names, and makes up the packages above them where they are not there."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns what to import for a name; None for a name that is not for this finder."""
        if fullname in OURS:
            return ModuleSpec(fullname, _OurModule(), origin=OURS[fullname])
        if fullname not in PACKAGES:
            return None
        for finder in [finder for finder in sys.meta_path if finder is not self]:
            spec = finder.find_spec(fullname, path, target) if hasattr(finder, "find_spec") else None
            if spec is not None:
                if fullname == EXPORTING and spec.loader is not None:
                    spec.loader = _Exporting(spec.loader)
                return spec
        return ModuleSpec(fullname, MadeUpPackage(), is_package=True)


class _OurModule(Loader):
    """Gives our module under another name: the same object, which stays what it is."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Returns our module, imported under its own name."""
        module = import_module(OURS[spec.name])
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Gives the module its own spec back, which the import replaced: by it, it is reloaded and pickled."""
        module.__spec__ = self._own_spec


class MadeUpPackage(Loader):
    """Makes an empty package where the reference's is not installed."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Returns a package in which only our modules are found."""
        return ModuleType(spec.name, "A package of Megatron, which is not installed; its data modules are tokenloom's.")

    def exec_module(self, module: ModuleType) -> None:
        """Lets the package of the data modules give their classes by name."""
        if module.__name__ == EXPORTING:
            vars(module)["__getattr__"] = exported


class _Exporting(Loader):
    """Loads the reference's package, and lets it give our classes by name."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Returns what the loader makes."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Lets the loader run the package, and adds our classes to what it does not have."""
        self._loader.exec_module(module)
        vars(module).setdefault("__getattr__", exported)
