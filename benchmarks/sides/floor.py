"""A floor that is computed, not measured: bytes that cannot be saved."""

from __future__ import annotations

from collections.abc import Callable

from serve import Outcome, serve


def prepare(*, folder: str, memory_bytes: int) -> Callable[[], Outcome]:
    return lambda: {"work": 1, "memory_bytes": memory_bytes}


if __name__ == "__main__":
    serve(prepare)
