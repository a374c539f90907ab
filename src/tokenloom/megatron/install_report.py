"""What `install` did, for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallReport:
    """Which of the reference's modules are ours.

    Attributes:
        is_installed: whether imports of the reference's modules give ours now.
        version: the version of megatron-core that is there; None without one, empty if it does not say.
        is_checked: whether that version is one that tokenloom is compared with; True without one.
        modules: the name of each of the reference's modules that gives ours, and that of ours.
        loaded: those of them that this process has imported.
        replaced: those that had been imported from Megatron before.
        rebound: global names of other modules, such as "train.GPTDataset", that stood for Megatron's and now for ours.
        left: global names and classes that still stand for Megatron's, or are derived from them.
    """

    is_installed: bool
    version: str | None
    is_checked: bool
    modules: Mapping[str, str] = field(default_factory=dict)
    loaded: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    rebound: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Returns the report as lines of text."""
        if not self.is_installed:
            return "tokenloom.megatron is not installed: Megatron's modules are its own"
        version = "none is installed" if self.version is None else self.version or "of unknown version"
        checked = "" if self.is_checked else ", which tokenloom was not compared with"
        lines = [f"tokenloom.megatron is installed; megatron-core: {version}{checked}"]
        lines += [f"  {name} is {ours}{self._state(name)}" for name, ours in self.modules.items()]
        lines += [f"  {name} was Megatron's and is ours" for name in self.rebound]
        lines += [f"  {name} is still Megatron's" for name in self.left]
        return "\n".join(lines)

    def _state(self, name: str) -> str:
        if name in self.replaced:
            return " (in the place of one that had been imported)"
        return " (imported)" if name in self.loaded else ""
