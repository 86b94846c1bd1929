"""Files that are either old or new, never half of one."""

import json
import os
import tempfile
from pathlib import Path


def write_text(file: Path, text: str) -> None:
    """Replaces a file; its folder is made. Raises `OSError`, the file as it was.

    The new contents come by renaming, so `file` must not be a device or a link to one.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=".", suffix=".tmp")
    new = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        new.replace(file)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def write_json(file: Path, value: object) -> None:
    """Replaces a file by JSON of `value`, as `write_text` does."""
    write_text(file, json.dumps(value, ensure_ascii=False))
