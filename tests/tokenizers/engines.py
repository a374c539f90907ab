"""Texts on which engines must agree."""

from __future__ import annotations

from tests.preprocess.corpus import (
    EOD,
)

TEXTS = ["", "def f(x): return x", " ", "naïve 中文 👍", f"a{EOD}b", "\x00\x1f", "a" * 500]
