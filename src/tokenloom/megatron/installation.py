"""Redirects imports of Megatron's data modules to tokenloom's, in a process and its children."""

from __future__ import annotations

import multiprocessing.spawn
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module, util
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from tokenloom.errors import ConfigError

_CORE = (
    *("bert_dataset", "blended_dataset", "blended_megatron_dataset_builder", "blended_megatron_dataset_config"),
    *("data_schedule", "data_schedule_utils", "gpt_dataset", "helpers", "helpers_cpp", "indexed_dataset"),
    *("masked_dataset", "megatron_dataset", "megatron_tokenizer", "multimodal_dataset", "object_storage_utils"),
    *("t5_dataset", "utils", "utils_s3"),
)
_TRAINING = ("data_samplers", "fim_dataset", "sft_dataset", "utils", "varlen_dataset")

OURS: dict[str, str] = {
    **{f"megatron.core.datasets.{name}": f"tokenloom.megatron.core.datasets.{name}" for name in _CORE},
    **{f"megatron.training.datasets.{name}": f"tokenloom.megatron.training.datasets.{name}" for name in _TRAINING},
    "megatron.legacy.data.data_samplers": "tokenloom.megatron.training.datasets.data_samplers",
}
"""The tokenloom module that replaces each Megatron module; other packages add modules through entry points."""

OURS.update((found.name, found.value) for found in entry_points(group="tokenloom.megatron_modules"))

PACKAGES = frozenset(name.rsplit(".", depth)[0] for name in OURS for depth in range(1, name.count(".") + 1))
"""The packages that contain the replaced modules, at any depth; an installed Megatron keeps its own packages."""

_EXPORTING = "megatron.core.datasets"
"""The package that exports tokenloom's classes by name; Megatron's own package exports no classes."""

_LOCK = threading.RLock()


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallReport:
    """The Megatron modules that tokenloom replaces in this process.

    Attributes:
        is_installed: whether `install` is in effect.
        version: version of megatron-core; None if megatron-core is not installed, empty if the version is unknown.
        is_checked: whether tokenloom was tested against `version`; True if megatron-core is not installed.
        modules: {name of a Megatron module: name of the tokenloom module that replaces the Megatron module}.
        loaded: names of the replaced modules that this process has imported.
    """

    is_installed: bool
    version: str | None
    is_checked: bool
    modules: Mapping[str, str] = field(default_factory=dict)
    loaded: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.is_installed:
            return "tokenloom.megatron is not installed: Megatron's own modules are used"
        version = "not installed" if self.version is None else self.version or "unknown version"
        checked = "" if self.is_checked else " (not tested with tokenloom)"
        rows = (f"\n  {name} -> {ours}{' (imported)' * (name in self.loaded)}" for name, ours in self.modules.items())
        return f"tokenloom.megatron is installed; megatron-core: {version}{checked}{''.join(rows)}"


def install(*, unchecked: bool = False) -> InstallReport:
    """Redirects imports of Megatron's data modules to tokenloom's, in this process and its children.

    Call `install` before the program imports any of these modules. A second call has no effect. If megatron-core is not
    installed, the packages `megatron.core.datasets` and so on are created, with tokenloom's modules in them.

    Args:
        unchecked: whether to accept a megatron-core version that tokenloom was not tested against.

    Raises:
        ConfigError: megatron-core's version was not tested, or Megatron's own data modules are already imported.
    """
    with _LOCK:
        if _installed() is None:
            version = installed_version()
            if not unchecked and not _is_checked(version):
                message = f"tokenloom was not tested against megatron-core {version or 'of unknown version'}"
                hint = f"use megatron-core {' or '.join(CHECKED)}, or pass `install(unchecked=True)` or `--unchecked`"
                raise ConfigError(message, hint=hint)
            if imported := [name for name in OURS if name in sys.modules]:
                message = f"Megatron's own data modules are already imported: {', '.join(imported)}"
                hint = "call `tokenloom.megatron.install()` earlier, or run `python -m tokenloom.megatron SCRIPT`"
                raise ConfigError(message, hint=hint)
            sys.meta_path.insert(0, _Finder(version))
            multiprocessing.spawn.get_preparation_data = _Preparation(multiprocessing.spawn.get_preparation_data)
        return report()


def uninstall() -> None:
    """Undoes `install`: later imports load Megatron's own data modules. Objects already imported do not change."""
    with _LOCK:
        finder = _installed()
        if finder is None:
            return
        sys.meta_path.remove(finder)
        preparation = multiprocessing.spawn.get_preparation_data
        if isinstance(preparation, _Preparation):  # else other code has wrapped the function
            multiprocessing.spawn.get_preparation_data = preparation.original  # type: ignore[assignment]
        for name in _loaded():
            _remove(name)
        if (package := sys.modules.get(_EXPORTING)) is not None and vars(package).get("__getattr__") is _exported:
            del package.__getattr__
        for name in sorted(PACKAGES, reverse=True):
            module = sys.modules.get(name)
            if module is not None and isinstance(module.__spec__ and module.__spec__.loader, _CreatedPackage):
                _remove(name)


def report() -> InstallReport:
    """Returns the replaced modules, the version of megatron-core, and whether `install` is in effect."""
    with _LOCK:
        finder = _installed()
        version = installed_version() if finder is None else finder.version
        found: dict[str, Any] = {} if finder is None else {"modules": OURS, "loaded": tuple(_loaded())}
        return InstallReport(is_installed=finder is not None, version=version, is_checked=_is_checked(version), **found)


class _Finder(MetaPathFinder):
    """An import hook that finds tokenloom's modules under Megatron's names, and creates missing packages."""

    def __init__(self, version: str | None) -> None:
        self.version = version

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the spec of a replaced module or of its package; None for other names."""
        if fullname.rpartition(".")[0] == _EXPORTING:  # a module, or a class imported from the package
            vars(sys.modules[_EXPORTING]).setdefault("__getattr__", _exported)
        if fullname in OURS:
            return ModuleSpec(fullname, _OurModule(), origin=OURS[fullname])
        if fullname not in PACKAGES:
            return None
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        return next(filter(None, specs), None) or ModuleSpec(fullname, _CreatedPackage(), is_package=True)


class _OurModule(Loader):
    """A loader that returns tokenloom's module object under Megatron's name; the object keeps its own spec."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(OURS[spec.name])
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own_spec  # the import system has overwritten the spec, which reload and pickle need


class _CreatedPackage(Loader):
    """A loader of an empty package, used if Megatron is not installed."""

    def exec_module(self, module: ModuleType) -> None:
        module.__doc__ = "A placeholder for a package of Megatron; the data modules in it are tokenloom's."


class _Preparation:
    """A wrapper of `get_preparation_data` that makes spawned processes call `install` before the program's imports."""

    def __init__(self, original: Callable[[str], dict[str, Any]]) -> None:
        self.original = original

    def __call__(self, name: str) -> dict[str, Any]:
        found = self.original(name)
        return found if _installed() is None else {"tokenloom_megatron": _Installs(), **found}


class _Installs:
    """An object whose unpickling calls `install`."""

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str, dict[str, Any]]]:
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            "import tokenloom.megatron; tokenloom.megatron.install(unchecked=True)"
        )
        return exec, (code, {})


def _exported(name: str) -> Any:
    """Returns a tokenloom class by name; serves as `__getattr__` of the package `_EXPORTING`."""
    return getattr(import_module(f"tokenloom.{_EXPORTING}"), name)


def _installed() -> _Finder | None:
    return next((finder for finder in sys.meta_path if isinstance(finder, _Finder)), None)


def _loaded() -> list[str]:
    """Returns the names of the replaced modules that are imported."""
    return [name for name, ours in OURS.items() if name in sys.modules and sys.modules[name] is sys.modules.get(ours)]


def _is_checked(version: str | None) -> bool:
    return version is None or version_numbers(version) in map(version_numbers, CHECKED)


def _remove(name: str) -> None:
    """Removes a module from `sys.modules` and from its parent package."""
    package, _, child = name.rpartition(".")
    module, parent = sys.modules.pop(name), sys.modules.get(package)
    if parent is not None and vars(parent).get(child) is module:
        delattr(parent, child)


# --- version of megatron-core -----------------------------------------------------------------------------------------

CHECKED = ("0.16.1", "0.19.2", "0.20.0")
"""The tested versions of megatron-core, in ascending order; the last is a development branch."""

NEWEST = (0, 20)

_FIELD = re.compile(r"^(MAJOR|MINOR|PATCH|PRE_RELEASE)\s*=\s*['\"]?([^'\"\s#]*)", re.MULTILINE)


def reference_version() -> tuple[int, ...]:
    """Returns the version of megatron-core, such as (0, 16, 1); `NEWEST` if no version is found."""
    text = installed_version()
    return (version_numbers(text) if text else ()) or NEWEST


def installed_version() -> str | None:
    """Returns the version of the megatron-core that this process has imported or would import, such as "0.16.1".

    Empty if the version is unknown, None if megatron-core is not installed. Before `megatron.core` is imported, parses
    `package_info.py` instead of importing it. A checkout on the import path takes precedence over an installed package.
    """
    core = sys.modules.get("megatron.core")
    if core is not None and isinstance(version := vars(core).get("__version__"), str):
        return version
    try:  # `find_spec` imports only the package `megatron`
        spec = util.find_spec("megatron.core") if core is None else None
        origin = getattr(spec, "origin", None) if core is None else vars(core).get("__file__")
    except (ModuleNotFoundError, ValueError):
        return None
    return None if origin is None else _version_in(Path(origin).with_name("package_info.py"))


def version_numbers(text: str) -> tuple[int, ...]:
    """Returns the leading numbers of a version: (0, 19, 2) for "0.19.2rc1"."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else ()


@lru_cache
def _version_in(path: Path) -> str:
    """Returns the version in a `package_info.py`; empty if the file does not contain a version."""
    try:
        fields = dict(_FIELD.findall(path.read_text()))
        return f"{fields['MAJOR']}.{fields['MINOR']}.{fields['PATCH']}{fields.get('PRE_RELEASE', '')}"
    except (OSError, KeyError):
        return ""
