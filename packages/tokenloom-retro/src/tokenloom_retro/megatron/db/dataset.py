"""`megatron.core.datasets.retro.db.dataset`: the chunks of a database, by number."""

from __future__ import annotations

from tokenloom_retro.chunk_database import DBDataset

__all__ = ["DBDataset"]
