"""What a lock says of its run, as facts: of a `Run` and of its dataset."""

from __future__ import annotations

from typing import Any

from tokenloom.run.digest import run_identity
from tokenloom.run.lock import RunLock


def lock_facts(lock: RunLock) -> dict[str, Any]:
    """Returns identity, size, stages and sources of a run; see `HasFacts`."""
    last = lock.segments[-1]
    denied = sum(len(documents) for denial in lock.denials for _, documents in denial.documents)
    return {
        "identity": run_identity(lock)[:16],
        "samples": "without end" if last.num_samples is None else last.start + last.num_samples,
        "consumed": lock.consumed or None,
        "order": "megatron" if lock.is_megatron else str(lock.order),
        "seed": str(lock.seed),
        "dataset": lock.dataset,
        "tokenizer": None if lock.tokenizer is None else lock.tokenizer.name,
        "denied documents": denied or None,
        "stages": [
            {
                "stage": segment.stage,
                "from position": segment.start,
                "samples": "without end" if segment.num_samples is None else segment.num_samples,
                "sequence length": segment.sequence_length,
                "sources": len(segment.weights),
            }
            for segment in lock.segments
        ],
        "sources": [
            {
                "source": source.name,
                "pairs": len(source.pairs),
                "documents": sum(pair.num_documents for pair in source.pairs),
                "tokens": sum(pair.num_tokens for pair in source.pairs),
            }
            for source in lock.sources
        ],
    }
