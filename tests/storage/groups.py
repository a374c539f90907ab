"""Files that belong together."""

NAMES = ("data.bin", "data.extra", "data.idx")


def whole(text, names=NAMES):
    return {name: f"{text} {name}".encode() for name in names}
