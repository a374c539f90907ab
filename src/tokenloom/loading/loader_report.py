"""How long a training loop waited for its data, and what reading them cost, as a line of a file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tokenloom.datasets.protocols import is_remote_dataset
from tokenloom.loading.read_ahead import ReadAheadDataset, loader_statistics
from tokenloom.loading.thread_loader import DataWait, ThreadLoader
from tokenloom.storage.statistics import SourceStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderReport:
    """What a loader did until now. Numbers count from its beginning on; a reader of several reports takes differences.

    Attributes:
        step: of training, as it was told.
        consumed_samples: position of the run, as it was told.
        unix_seconds: when this was, in seconds since 1970.
        wait: how long the loop waited; None where the loader does not know it, as torch's does not.
        storage: what was read of object storage, by address; nothing of local files.
    """

    step: int | None
    consumed_samples: int | None
    unix_seconds: float
    wait: DataWait | None = None
    storage: Mapping[str, SourceStatistics] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Returns plain values, for `JsonLinesWriter`."""
        return {
            "step": self.step,
            "consumed_samples": self.consumed_samples,
            "unix_seconds": self.unix_seconds,
            "wait": None if self.wait is None else asdict(self.wait),
            "storage": {path: asdict(entry) for path, entry in self.storage.items()},
        }


def loader_report(loader: Any, *, step: int | None = None, consumed_samples: int | None = None) -> LoaderReport:
    """Returns what a loader did until now; cheap enough for every step.

    One rank writes it to a file, a line every some steps: `JsonLinesWriter("loader.jsonl")(loader_report(loader,
    step=step))`. `tokenloom report run.toml --statistics loader.jsonl` draws it.

    Args:
        loader: a `ThreadLoader`, or what `build_dataloader` returned, whose waits are not known.
        step: of training.
        consumed_samples: position of the run.

    Example:
        >>> import numpy as np
        >>> from tokenloom import ThreadLoader
        >>> class Numbers:
        ...     def batch(self, positions):
        ...         return {"position": np.array(positions)}
        >>> loader = ThreadLoader(Numbers(), [[0, 1], [2, 3]])
        >>> for batch in loader:
        ...     pass
        >>> loader_report(loader, step=2).as_json()["wait"]["num_batches"]
        2
    """
    is_remote = isinstance(loader.dataset, ReadAheadDataset) or is_remote_dataset(loader.dataset)
    wait = loader.wait if isinstance(loader, ThreadLoader) else None
    return LoaderReport(
        step=step,
        consumed_samples=consumed_samples,
        unix_seconds=time.time(),
        wait=None if wait is None else DataWait(**asdict(wait)),
        storage=loader_statistics(loader) if is_remote else {},
    )
