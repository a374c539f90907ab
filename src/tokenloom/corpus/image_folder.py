"""Texts of JSON lines and the images of a folder that go with them by their order, as records that name their image."""

from __future__ import annotations

import json
import os

from tokenloom.errors import InputError
from tokenloom.storage.atomic import storage_errors
from tokenloom.storage.json_files import UnusableJsonError, parse_json
from tokenloom.storage.publishing import write_report


def write_image_records(
    texts_path: str, images_folder: str, output_path: str, *, image_key: str = "image", overwrite: bool = False
) -> int:
    """Writes each record again, with the path of its image: the n-th of the folder, by name. Returns their number.

    The reference's tool pairs them in the order in which the filesystem lists the folder, which may differ between two
    machines; here it is that of the names. Blank lines are left out.

    Args:
        texts_path: path of JSON lines.
        images_folder: folder with as many files; names that begin with a dot do not count.
        output_path: path of the records.
        image_key: key of the path of the image.
        overwrite: whether to replace a file that holds something else.

    Raises:
        InputError: a line is no JSON object, or there are more or fewer images.
        OutputExistsError: the output is there, and holds something else.
        StorageError: something cannot be read or written.
    """
    folder = os.path.abspath(images_folder)
    with storage_errors("open", images_folder):
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    with storage_errors("open", texts_path), open(texts_path, "rb") as stream:
        lines = [(number, line) for number, line in enumerate(stream, 1) if line.strip()]
    if len(lines) != len(names):
        message = f"`{texts_path}` has {len(lines)} records, and `{images_folder}` {len(names)} images"
        raise InputError(message, hint="they are paired by their order, records by line and images by name")
    rows = []
    for (number, line), name in zip(lines, names, strict=True):
        record = _object(line, f"line {number} of `{texts_path}`")
        rows.append(json.dumps({**record, image_key: os.path.join(folder, name)}, ensure_ascii=False))
    data = "".join(f"{row}\n" for row in rows).encode("utf-8", "surrogatepass")
    write_report(output_path, data, overwrite=overwrite)
    return len(rows)


def _object(line: bytes, where: str) -> dict[str, object]:
    try:
        value = parse_json(line)
    except UnusableJsonError as error:
        message = f"{where} is not JSON: {error}"
        raise InputError(message) from error
    if not isinstance(value, dict):
        message = f"{where}: expected an object, found {type(value).__name__}"
        raise InputError(message)
    return value
