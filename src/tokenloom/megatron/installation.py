"""Puts our modules in place of the reference's, for a process and its children."""

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
"""Our module for each module of the reference; satellites add theirs as entry points."""

OURS.update((found.name, found.value) for found in entry_points(group="tokenloom.megatron_modules"))

PACKAGES = frozenset(name.rsplit(".", depth)[0] for name in OURS for depth in range(1, name.count(".") + 1))
"""The packages of these modules, at any depth; they stay the reference's where it is installed."""

_EXPORTING = "megatron.core.datasets"
"""The package that also exports classes by name, unlike the reference's."""

_LOCK = threading.RLock()


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallReport:
    """Which of the reference's modules are replaced by ours.

    Attributes:
        is_installed: whether imports of the reference's modules give ours now.
        version: version of megatron-core; None if it is not installed, empty if unknown.
        is_checked: whether tokenloom is compared with that version; True if megatron-core is not installed.
        modules: our module for each replaced module of the reference.
        loaded: the replaced modules that this process has imported.
    """

    is_installed: bool
    version: str | None
    is_checked: bool
    modules: Mapping[str, str] = field(default_factory=dict)
    loaded: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.is_installed:
            return "tokenloom.megatron is not installed: Megatron's modules are its own"
        version = "none is installed" if self.version is None else self.version or "of unknown version"
        checked = "" if self.is_checked else ", which tokenloom was not compared with"
        lines = [f"tokenloom.megatron is installed; megatron-core: {version}{checked}"]
        for name, ours in self.modules.items():
            lines.append(f"  {name} is {ours}{' (imported)' if name in self.loaded else ''}")
        return "\n".join(lines)


def install(*, unchecked: bool = False) -> InstallReport:
    """Makes imports of Megatron's data modules give those of tokenloom, in this process and its children.

    Call it before these modules are imported. A second call does nothing. Where megatron-core is not installed, its
    packages are created with our modules in them.

    Args:
        unchecked: whether to accept a version of megatron-core that tokenloom is not compared with.

    Raises:
        ConfigError: the version is not one of those, or Megatron's own modules were imported before.
    """
    with _LOCK:
        if _installed() is None:
            version = installed_version()
            if not unchecked and not _is_checked(version):
                message = f"megatron-core {version or 'of unknown version'} is not compared with tokenloom"
                hint = f"install {' or '.join(CHECKED)}; `install(unchecked=True)` or `--unchecked` accepts others"
                raise ConfigError(message, hint=hint)
            if imported := [name for name in OURS if name in sys.modules]:
                message = f"Megatron's data modules were imported before: {', '.join(imported)}"
                hint = "call `tokenloom.megatron.install()` first, or run the program by `python -m tokenloom.megatron`"
                raise ConfigError(message, hint=hint)
            sys.meta_path.insert(0, _Finder(version))
            multiprocessing.spawn.get_preparation_data = _Preparation(multiprocessing.spawn.get_preparation_data)
        return report()


def uninstall() -> None:
    """Makes imports of Megatron's data modules give its own again; does nothing without `install`.

    Objects that a program has imported stay ours.
    """
    with _LOCK:
        finder = _installed()
        if finder is None:
            return
        sys.meta_path.remove(finder)
        preparation = multiprocessing.spawn.get_preparation_data
        if isinstance(preparation, _Preparation):  # else another program has wrapped it
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
    """Returns which of Megatron's modules are ours now."""
    with _LOCK:
        finder = _installed()
        version = installed_version() if finder is None else finder.version
        found: dict[str, Any] = {} if finder is None else {"modules": OURS, "loaded": tuple(_loaded())}
        return InstallReport(is_installed=finder is not None, version=version, is_checked=_is_checked(version), **found)


class _Finder(MetaPathFinder):
    """Finds our modules under the reference's names, and creates their packages where these are missing."""

    def __init__(self, version: str | None) -> None:
        self.version = version

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the spec of one of our modules or their packages; None for other names."""
        if fullname.rpartition(".")[0] == _EXPORTING:  # a module, or a name that the package lacks
            vars(sys.modules[_EXPORTING]).setdefault("__getattr__", _exported)
        if fullname in OURS:
            return ModuleSpec(fullname, _OurModule(), origin=OURS[fullname])
        if fullname not in PACKAGES:
            return None
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        return next(filter(None, specs), None) or ModuleSpec(fullname, _CreatedPackage(), is_package=True)


class _OurModule(Loader):
    """Loads our module under another name: the same object with its own spec."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(OURS[spec.name])
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own_spec  # the import replaced it; reloading and pickling need it


class _CreatedPackage(Loader):
    """Creates an empty package where the reference's is not installed."""

    def exec_module(self, module: ModuleType) -> None:
        module.__doc__ = "A package of Megatron, which is not installed; its data modules are tokenloom's."


class _Preparation:
    """Makes spawned processes install before they import the program; forked ones inherit it."""

    def __init__(self, original: Callable[[str], dict[str, Any]]) -> None:
        self.original = original

    def __call__(self, name: str) -> dict[str, Any]:
        found = self.original(name)
        return found if _installed() is None else {"tokenloom_megatron": _Installs(), **found}


class _Installs:
    """Installs where it is unpickled: children unpickle this before they import anything."""

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str, dict[str, Any]]]:
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            "import tokenloom.megatron; tokenloom.megatron.install(unchecked=True)"
        )
        return exec, (code, {})


def _exported(name: str) -> Any:
    """Returns a class of our data modules; the `__getattr__` of their package."""
    return getattr(import_module(f"tokenloom.{_EXPORTING}"), name)


def _installed() -> _Finder | None:
    return next((finder for finder in sys.meta_path if isinstance(finder, _Finder)), None)


def _loaded() -> list[str]:
    """Returns the names of the reference that are imported as ours."""
    return [name for name, ours in OURS.items() if name in sys.modules and sys.modules[name] is sys.modules.get(ours)]


def _is_checked(version: str | None) -> bool:
    return version is None or version_numbers(version) in map(version_numbers, CHECKED)


def _remove(name: str) -> None:
    """Removes a module from `sys.modules` and from its package."""
    package, _, child = name.rpartition(".")
    module, above = sys.modules.pop(name), sys.modules.get(package)
    if above is not None and vars(above).get(child) is module:
        delattr(above, child)


# --- which version of the reference -----------------------------------------------------------------------------------

CHECKED = ("0.16.1", "0.19.2", "0.20.0")
"""The versions of megatron-core that this package is compared with, old to new; the last is a branch."""

NEWEST = (0, 20)
"""The newest known version."""

_FIELD = re.compile(r"^(MAJOR|MINOR|PATCH|PRE_RELEASE)\s*=\s*['\"]?([^'\"\s#]*)", re.MULTILINE)


def reference_version() -> tuple[int, ...]:
    """Returns the version of the installed reference, such as (0, 16, 1); without one, the newest known."""
    text = installed_version()
    return (version_numbers(text) if text else ()) or NEWEST


def installed_version() -> str | None:
    """Returns the version of the megatron-core that this process has or would import, such as "0.16.1".

    It is read from a file without an import, so a checkout that shadows an installed package counts. Empty if the
    package does not contain its version; None without a package.
    """
    core = sys.modules.get("megatron.core")
    if core is not None and isinstance(said := vars(core).get("__version__"), str):
        return said
    try:  # which imports no more than the namespace above it
        spec = util.find_spec("megatron.core") if core is None else None
        origin = getattr(spec, "origin", None) if core is None else vars(core).get("__file__")
    except (ModuleNotFoundError, ValueError):
        return None
    return None if origin is None else _written_version(str(Path(origin).with_name("package_info.py"))) or ""


def version_numbers(text: str) -> tuple[int, ...]:
    """Returns the leading numbers of a version: (0, 19, 2) for "0.19.2rc1"."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else ()


@lru_cache
def _written_version(path: str) -> str | None:
    try:
        fields = dict(_FIELD.findall(Path(path).read_text()))
    except OSError:
        return None
    if not {"MAJOR", "MINOR", "PATCH"} <= set(fields):
        return None
    return f"{fields['MAJOR']}.{fields['MINOR']}.{fields['PATCH']}{fields.get('PRE_RELEASE', '')}"
