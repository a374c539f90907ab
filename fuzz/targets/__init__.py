"""The targets: modules with `check(data)`, which raises for what must not be, and `seeds()`, good inputs.

A reader may succeed or raise a `TokenloomError`. Anything else that `check` raises is a find, and so is a crash, a
hang, or memory beyond the limit.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

NAMES = (
    "json_texts",
    "idx",
    "index_cache",
    "manifest",
    "catalogue",
    "columns",
    "rank_file",
    "blend_spec",
    "settings",
    "hostile_arrays",
    "variants",
)

CORPUS = Path(__file__).parents[1] / "corpus"
"""A folder per target with the inputs that are kept: seeds, finds, and what reached code that nothing else did."""


KNOWN = CORPUS.with_name("known")
"""The same for finds that are not mended yet; a test fails as soon as one is, and it moves to the corpus."""


@dataclass(frozen=True)
class Target:
    """A target by name."""

    name: str
    check: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]

    @property
    def corpus(self) -> list[Path]:
        """The kept inputs."""
        return sorted(path for path in (CORPUS / self.name).glob("*") if path.is_file())


def load(name: str) -> Target:
    """Returns a target."""
    module = importlib.import_module(f"fuzz.targets.{name}")
    return Target(name, module.check, module.seeds)
