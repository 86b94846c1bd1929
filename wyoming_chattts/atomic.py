"""Files that are either old or new, never half of one."""

import json
import tempfile
from pathlib import Path


def write_json(file: Path, value: object) -> None:
    """Replaces a file by JSON of `value`; its folder is made. Raises `OSError`, the file as it was.

    The new contents come by renaming, so `file` must not be a device or a link to one.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=file.parent, delete=False, encoding="utf-8", suffix=".tmp"
    ) as out:
        json.dump(value, out, ensure_ascii=False)
    try:
        Path(out.name).replace(file)
    except OSError:
        Path(out.name).unlink(missing_ok=True)
        raise
