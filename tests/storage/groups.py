"""Files that belong together."""

from pathlib import Path

NAMES = ("data.bin", "data.extra", "data.idx")


def contents(folder):
    """Everything in a folder by name; hidden names included."""
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def whole(text, names=NAMES):
    return {name: f"{text} {name}".encode() for name in names}
