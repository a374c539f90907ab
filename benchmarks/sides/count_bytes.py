"""One pass over the text in memory."""

from __future__ import annotations

from collections.abc import Callable

from serve import Outcome, serve
from texts import text_megabytes, texts_of, whole_path


def prepare(*, folder: str, megabytes: int) -> Callable[[], Outcome]:
    text = "".join(texts_of(whole_path(folder, megabytes))).encode()

    def round_() -> Outcome:
        text.count(b"\n")
        return {"work": text_megabytes(folder, megabytes)}

    return round_


if __name__ == "__main__":
    serve(prepare)
