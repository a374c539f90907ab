"""The data that indices are built from: are they sound, and are they still the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenloom.datasets.protocols import pair_of
from tokenloom.indexed.identity import dataset_identity
from tokenloom.indexed.verify import check_index, check_sidecars


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOrigin:
    """A low-level dataset as the `DataOrigin` of index arrays.

    Attributes:
        dataset: the data; made-up ones are sound, and need no identity.
        further: what else the arrays depend on and the key of their cache does not say.
        tell: tells the data from others; None for `dataset_identity` of a pair.
    """

    dataset: Any
    further: Mapping[str, Any] = field(default_factory=dict)
    tell: Callable[[], dict[str, Any]] | None = None

    def check(self) -> None:
        """Checks every row of the index, and all roles, once per opened pair; compares with its manifest.

        Raises:
            DatasetFormatError: they are damaged.
        """
        if (pair := pair_of(self.dataset)) is not None:
            check_index(pair, compares=not pair.is_remote)  # its local copy has a checksum of its own
            if not pair.is_remote:
                check_sidecars(pair, names=("roles",))

    @property
    def identity(self) -> Callable[[], dict[str, Any]] | None:
        """Returns what tells the data from others; None for made-up ones."""
        return None if self.tell is None and pair_of(self.dataset) is None else self._identity

    def _identity(self) -> dict[str, Any]:
        found = dataset_identity(self.dataset) if self.tell is None else self.tell()
        return {**found, **self.further}
