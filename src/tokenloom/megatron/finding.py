"""The reference's modules by import: a finder that answers for their names with our modules."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from tokenloom.megatron.module_names import OURS, PACKAGES


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
        """Does nothing."""
