"""Our modules in the place of the reference's, for a whole process; and the other way round."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from tokenloom.errors import ConfigError
from tokenloom.megatron.children import Preparation, also_in_children, no_longer_in_children
from tokenloom.megatron.finding import Finder, MadeUpPackage, exported
from tokenloom.megatron.install_report import InstallReport
from tokenloom.megatron.module_names import EXPORTING, OURS, PACKAGES
from tokenloom.megatron.taken_names import TakenName, subclasses, taken_names
from tokenloom.megatron.versions import CHECKED, installed_version, version_numbers

_LOCK = threading.RLock()
_SHOWN = 5


class _Installed(Finder):
    """The finder in its place, with what is needed to take it away again."""

    def __init__(self, version: str | None) -> None:
        self.version = version
        self.originals: dict[str, ModuleType] = {}
        self.rebound: list[tuple[TakenName, Any]] = []
        self.left: list[str] = []
        self.preparation: Preparation | None = None


def install(*, unchecked: bool = False, late: bool = False) -> InstallReport:
    """Lets imports of Megatron's data modules give those of tokenloom, in this process and in those that it starts.

    To be called before anything of Megatron is imported. Modules that Megatron alone has used so far are replaced, and
    its own global names with them. Where a program has taken something out of them already, or derived classes from
    theirs, nothing is done and an error names it. A second call does nothing.

    Where megatron-core is not installed, `megatron.core.datasets` and so on are made up, with our modules in them.

    Args:
        unchecked: whether to go on with a version of megatron-core that tokenloom is not compared with.
        late: whether to go on where a program has Megatron's classes already: global names are bound to ours, and what
            cannot be (derived classes, objects, names in other places) stays Megatron's, as the report says.

    Returns:
        What was done.

    Raises:
        ConfigError: the version is not known, or it is too late.
    """
    with _LOCK:
        if _installed() is None:
            version = installed_version()
            if not unchecked:
                _check_version(version)
            finder = _Installed(version)
            imported = _imported()
            taken = list(taken_names(imported)) if imported else []
            derived = subclasses(imported)
            if not late:
                _check_early(taken, derived)
            # Ours first: an error here leaves everything as it was.
            modules = {name: import_module(OURS[name]) for name in imported}
            sys.meta_path.insert(0, finder)
            for name, module in modules.items():
                finder.originals[name] = imported[name]
                _put(name, module)
            if (package := sys.modules.get(EXPORTING)) is not None:
                vars(package).setdefault("__getattr__", exported)
            for each in taken:
                _rebind(each, modules[each.module], finder)
            finder.left += [f"{each.__module__}.{each.__qualname__}" for each in derived]
            finder.preparation = also_in_children()
        return report()


def uninstall() -> None:
    """Lets imports of Megatron's data modules give its own again, and puts back those that were replaced.

    What a program took out of our modules meanwhile stays what it is. Without `install`, nothing is done.
    """
    with _LOCK:
        finder = _installed()
        if finder is None:
            return
        sys.meta_path.remove(finder)
        if finder.preparation is not None:
            no_longer_in_children(finder.preparation)
        for each, ours in reversed(finder.rebound):
            if vars(each.holder).get(each.name) is ours:
                setattr(each.holder, each.name, each.value)
        for name in _ours_now():
            _put(name, finder.originals.get(name))
        if (package := sys.modules.get(EXPORTING)) is not None and vars(package).get("__getattr__") is exported:
            del package.__getattr__
        for name in sorted(PACKAGES, reverse=True):
            module = sys.modules.get(name)
            if module is not None and isinstance(module.__spec__ and module.__spec__.loader, MadeUpPackage):
                _put(name, None)


def report() -> InstallReport:
    """Returns which of Megatron's modules are ours now."""
    with _LOCK:
        finder = _installed()
        version = installed_version() if finder is None else finder.version
        if finder is None:
            return InstallReport(is_installed=False, version=version, is_checked=_is_checked(version))
        return InstallReport(
            is_installed=True,
            version=version,
            is_checked=_is_checked(version),
            modules=OURS,
            loaded=tuple(_ours_now()),
            replaced=tuple(finder.originals),
            rebound=tuple(str(each) for each, _ in finder.rebound),
            left=tuple(finder.left),
        )


def _installed() -> _Installed | None:
    """Returns the finder that is in its place; by name, as this module may have been reloaded since."""
    for finder in sys.meta_path:
        kind = type(finder)
        if (kind.__module__, kind.__qualname__) == (__name__, _Installed.__qualname__):
            return finder  # type: ignore[return-value]  # or of the class that had the name before a reload
    return None


def _is_checked(version: str | None) -> bool:
    return version is None or version_numbers(version) in map(version_numbers, CHECKED)


def _check_version(version: str | None) -> None:
    if not _is_checked(version):
        found = version or "one that does not say its version"
        message = f"expected megatron-core {_listed(CHECKED)}, which tokenloom is compared with, found {found}"
        raise ConfigError(message, hint="`install(unchecked=True)` or `--unchecked` goes on with it")


def _check_early(taken: list[TakenName], derived: list[type]) -> None:
    names = [f"`{each}`" for each in taken if not each.is_within]
    names += [f"class `{each.__module__}.{each.__qualname__}`" for each in derived]
    if names:
        message = f"Megatron's data modules were imported before, and are in use: {_listed(names)}"
        hint = (
            "call `tokenloom.megatron.install()` before these imports, or run the program by "
            "`python -m tokenloom.megatron`; `install(late=True)` replaces global names only"
        )
        raise ConfigError(message, hint=hint)


def _imported() -> dict[str, ModuleType]:
    """Returns the reference's own modules that this process has imported.

    Raises:
        ConfigError: another thread is importing one right now.
    """
    found = {}
    for name, ours in OURS.items():
        module = sys.modules.get(name)
        if module is None or module is sys.modules.get(ours):
            continue
        if getattr(module.__spec__, "_initializing", False):  # what the import system itself asks
            message = f"expected no import of Megatron's data modules in progress, found `{name}`"
            raise ConfigError(message, hint="call `tokenloom.megatron.install()` before threads are started")
        found[name] = module
    return found


def _ours_now() -> list[str]:
    """Returns the reference's names under which ours is imported."""
    return [name for name, ours in OURS.items() if name in sys.modules and sys.modules[name] is sys.modules.get(ours)]


def _put(name: str, module: ModuleType | None) -> None:
    """Lets a name stand for a module, in `sys.modules` and in the package above; None for nothing."""
    package, _, child = name.rpartition(".")
    above = sys.modules.get(package)
    if module is None:
        was = sys.modules.pop(name, None)
        if above is not None and was is not None and vars(above).get(child) is was:
            delattr(above, child)
    else:
        sys.modules[name] = module
        if above is not None:
            setattr(above, child, module)


def _rebind(taken: TakenName, ours: ModuleType, finder: _Installed) -> None:
    value = ours if taken.original is None else vars(ours).get(taken.original)
    if value is None:
        finder.left.append(str(taken))
    else:
        setattr(taken.holder, taken.name, value)
        finder.rebound.append((taken, value))


def _listed(names: Sequence[str]) -> str:
    shown = names[:_SHOWN]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
