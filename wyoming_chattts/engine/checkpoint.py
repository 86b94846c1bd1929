"""Finds, downloads, verifies and hashes the model files.

Runs in a thread: everything here blocks. Raises `CheckpointError` that names the file.
"""

import hashlib
import importlib.util
import json
import logging
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..atomic import write_json
from ..errors import CheckpointError, DamagedFile
from . import layout
from .layout import Dims

_LOGGER = logging.getLogger(__name__)

MARKER = "synthetic.json"
"""Lies beside `asset/` of a checkpoint of random numbers."""
_HEADER_LIMIT = 64 * 1024 * 1024
_CHUNK = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A verified checkpoint: its folder, sizes and hash (hex sha256)."""

    folder: Path
    dims: Dims
    hash: str
    synthetic: bool

    def file(self, name: str) -> Path:
        """Path of one of `layout.FILES`."""
        return self.folder / name


class HashMemo:
    """Remembers the sha256 of files by (path, size, mtime), so that a start need not read 1 GB."""

    def __init__(self, file: Path | None) -> None:
        """Without a file the sums are remembered in this object only."""
        self._file = file
        self._known: dict[str, list[Any]] = {}
        if file is None:
            return
        try:
            known = json.loads(file.read_text(encoding="utf-8"))
            self._known = known if isinstance(known, dict) else {}
        except (OSError, ValueError):
            pass

    def sha256(self, path: Path) -> str:
        """Sum of a file, read only if its size or modification time is new."""
        stat = path.stat()
        stamp = [stat.st_size, stat.st_mtime_ns]
        known = self._known.get(str(path.resolve()))
        if isinstance(known, list) and known[:2] == stamp and len(known) == 3:
            return str(known[2])
        digest = file_sha256(path)
        self._known[str(path.resolve())] = [*stamp, digest]
        self._save()
        return digest

    def _save(self) -> None:
        if self._file is None:
            return
        try:
            write_json(self._file, self._known)
        except OSError as error:
            _LOGGER.debug("cannot keep file hashes in %s: %s", self._file, error)


def file_sha256(path: Path) -> str:
    """Hex sha256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def package_resource(name: str) -> Path:
    """A file of the `ChatTTS` package, found without importing it.

    Raises `CheckpointError` where the package is not installed.
    """
    spec = importlib.util.find_spec("ChatTTS")
    if spec is None or spec.origin is None:
        raise CheckpointError("the ChatTTS package is not installed")
    return Path(spec.origin).parent / name


def known_sums() -> dict[str, str]:
    """sha256 of each released file, from the ChatTTS package's `res/sha256_map.json`."""
    table = json.loads(package_resource("res/sha256_map.json").read_text(encoding="utf-8"))
    return {
        name: table["sha256_" + name.replace("/", "_").replace(".", "_")] for name in layout.FILES
    }


def open_checkpoint(
    folder: Path, *, verify: bool = True, memo: HashMemo | None = None
) -> Checkpoint:
    """Checks a local checkpoint: files, sums (unless `verify` is off), tensor names and shapes."""
    for name in layout.FILES:
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder / name}: missing")
    marker = read_marker(folder)
    dims = Dims(**marker["dims"]) if marker else layout.FULL
    _check_config(folder / layout.GPT_CONFIG, dims)
    for name, shapes in layout.tensor_shapes(dims).items():
        check_tensors(folder / name, shapes)
    memo = memo or HashMemo(None)
    if verify:
        expected = marker["sha256"] if marker else known_sums()
        for name in layout.FILES:
            if memo.sha256(folder / name) != expected[name]:
                raise DamagedFile(
                    f"{folder / name}: sha256 is not that of the released model; delete the file "
                    "to fetch it again, or set model.verify: false for a fine-tune",
                    folder / name,
                )
    return Checkpoint(folder, dims, model_hash(folder, memo), marker is not None)


def model_hash(folder: Path, memo: HashMemo) -> str:
    """One sum over all files that shape sound."""
    digest = hashlib.sha256()
    for name in layout.SOUND_FILES:
        digest.update(f"{name} {memo.sha256(folder / name)}\n".encode())
    return digest.hexdigest()


def read_marker(folder: Path) -> dict[str, Any] | None:
    """The marker of a synthetic checkpoint, or None for a real one."""
    path = folder / MARKER
    if not path.exists():
        return None
    try:
        marker = json.loads(path.read_text(encoding="utf-8"))
        Dims(**marker["dims"])
        dict(marker["sha256"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: not a marker of a synthetic checkpoint: {error}") from None
    return dict(marker)


def check_tensors(path: Path, shapes: layout.Shapes) -> None:
    """Compares a safetensors file's header with the expected names and shapes."""
    header = read_header(path)
    missing = sorted(shapes.keys() - header.keys())
    if missing:
        raise CheckpointError(f"{path}: tensor {missing[0]} is missing")
    for name, shape in shapes.items():
        found = header[name].get("shape")
        if found != list(shape):
            raise CheckpointError(f"{path}: tensor {name} has shape {found}, not {list(shape)}")


def read_header(path: Path) -> dict[str, Any]:
    """Header of a safetensors file: name → dtype, shape, data_offsets.

    Format: eight bytes of little-endian length, that much JSON, then the data.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > min(size - 8, _HEADER_LIMIT):
                raise CheckpointError(f"{path}: truncated (the header alone is {length} bytes)")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        end = max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from None
    except (struct.error, ValueError, TypeError, KeyError, AttributeError, IndexError):
        raise CheckpointError(f"{path}: not a safetensors file") from None
    if size < 8 + length + end:
        message = f"{path}: truncated ({size} bytes, {8 + length + end} announced)"
        raise DamagedFile(message, path)
    return dict(header)


def _check_config(path: Path, dims: Dims) -> None:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from None
    if not isinstance(config, dict):
        raise CheckpointError(f"{path}: not a JSON object")
    for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
        expected = layout.gpt_config(dims)[key]
        if key in config and config[key] != expected:
            raise CheckpointError(f"{path}: {key} is {config[key]}, not {expected}")


Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""


def download(
    folder: Path,
    *,
    repo: str,
    revision: str | None = None,
    endpoint: str | None = None,
    progress: Progress | None = None,
) -> None:
    """Fetches what is missing of a checkpoint from the hub into `folder`, resuming partial files.

    Raises `CheckpointError` that says why it failed and what can be done.
    """
    # imported here: it takes 0.3 s, and most starts need no download
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import logging as hub_logging
    from tqdm.auto import tqdm

    # the hub logs each retry by a handler of its own; what matters is in our error
    hub_logging.set_verbosity_error()
    done = 0
    total = _TOTAL_BYTES

    class Reporter(tqdm):  # type: ignore[misc]
        """Passes byte counts on instead of drawing a bar."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            # huggingface_hub passes a bar `name` that tqdm itself does not know
            kwargs.pop("name", None)
            super().__init__(*args, **(kwargs | {"disable": True}))

        def update(self, n: float | None = 1) -> None:
            nonlocal done
            done += int(n or 0)
            if progress is not None:
                progress(done, total)

    folder.mkdir(parents=True, exist_ok=True)
    for name in layout.FILES:
        if (folder / name).is_file():
            done += (folder / name).stat().st_size
            continue
        try:
            hf_hub_download(
                repo,
                name,
                revision=revision,
                endpoint=endpoint,
                local_dir=folder,
                tqdm_class=Reporter,
            )
        # the hub client raises from several HTTP libraries, all below OSError or its own base
        except (HfHubHTTPError, OSError, ValueError, RuntimeError) as error:
            raise CheckpointError(
                f"cannot fetch {name} of {repo} from {endpoint or hub_endpoint()}: "
                f"{_reason(error)}. Set model.endpoint (HF_ENDPOINT) "
                "to a mirror, or put the files into a folder and set model.dir"
            ) from None


def hub_endpoint() -> str:
    """Where huggingface_hub looks unless a setting says otherwise."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co")


_TOTAL_BYTES = 1_200_000_000
"""About what a checkpoint weighs; only the progress line uses it."""


def _reason(error: BaseException) -> str:
    """What went wrong first: the hub client wraps the network's own words several times."""
    while (earlier := error.__cause__ or error.__context__) is not None:
        error = earlier
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else 'no details'}"
