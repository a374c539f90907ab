"""Folders of input files, and what is found in them."""

import os

LINE = b'{"text": "a"}\n'


def write(folder, *names, data=LINE):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def found_in(folder, found):
    """Returns the paths below a folder."""
    below = [str(os.path.relpath(file.path, folder)) for file in found.files]
    return below, [str(os.path.relpath(path, folder)) for path in found.ignored]
