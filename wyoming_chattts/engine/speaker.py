"""Speaker embeddings: 768 fp16 numbers as bytes, and the ways they are written down.

A string of the ChatTTS package is base16384 of raw LZMA2 of the numbers; a random one is
`randn * std + mean` with the package's `spk_stat`, drawn on the CPU so that a seed is the same
voice on every machine (`model/speaker.py` of the package).
"""

import ast
import io
import lzma
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pybase16384
import torch

from ..errors import VoiceError, is_exhausted
from .checkpoint import package_resource
from .layout import CODEBOOKS, END_CODE

EMBEDDING_SIZE = 768
MAX_RECORDING_STEPS = 700
"""15 seconds."""
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]
_FILE_LIMIT = 1_000_000


def from_seed(seed: int) -> bytes:
    """Embedding of a seed."""
    std, mean = _statistics()
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(EMBEDDING_SIZE, generator=generator, dtype=torch.float16)
    return _bytes(noise * std + mean)


def from_string(text: str) -> bytes:
    """Embedding of a base16384 string. Raises `VoiceError`."""
    try:
        packed = pybase16384.decode_from_string(text.strip())
        # the size bound stops a small string from becoming a large array
        decompressor = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=_FILTERS)
        raw = decompressor.decompress(packed, max_length=2 * EMBEDDING_SIZE + 1)
    except (lzma.LZMAError, ValueError, RuntimeError, EOFError) as error:
        raise VoiceError(f"not a ChatTTS speaker string: {error}") from None
    return checked(raw)


def codes_from_string(text: str) -> bytes:
    """Codes `[4, steps]` uint16 of an encoded recording. Raises `VoiceError`.

    As the package writes it: two sizes, then raw LZMA2 of the codes, in base16384.
    """
    try:
        packed = pybase16384.decode_from_string(text.strip())
        books, steps = np.frombuffer(packed[:4], dtype="<u2").tolist()
        size = 2 * books * steps
        if books != CODEBOOKS or not 0 < steps <= MAX_RECORDING_STEPS:
            raise VoiceError(f"has {books} codebooks and {steps} steps")
        decompressor = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=_FILTERS)
        raw = decompressor.decompress(packed[4:], max_length=size + 1)
    except (lzma.LZMAError, ValueError, RuntimeError, EOFError) as error:
        raise VoiceError(f"not an encoded recording: {error}") from None
    if len(raw) != size or int(np.frombuffer(raw, dtype="<u2").max()) >= END_CODE:
        raise VoiceError("not an encoded recording")
    return raw


def codes_to_string(codes: bytes) -> str:
    """The string of a recording's codes `[4, steps]` uint16."""
    sizes = np.array([CODEBOOKS, len(codes) // (2 * CODEBOOKS)], dtype="<u2").tobytes()
    packed = lzma.compress(codes, format=lzma.FORMAT_RAW, filters=_FILTERS)
    return str(pybase16384.encode_to_string(sizes + packed))


def to_string(embedding: bytes) -> str:
    """The base16384 string of an embedding."""
    packed = lzma.compress(embedding, format=lzma.FORMAT_RAW, filters=_FILTERS)
    return str(pybase16384.encode_to_string(packed))


def from_file(path: Path) -> bytes:
    """Embedding of a `.pt` tensor or a `.txt` string. Raises `VoiceError` that names the file, and
    `OSError` where the process is out of descriptors."""
    try:
        data = path.read_bytes() if path.stat().st_size <= _FILE_LIMIT else None
    except OSError as error:
        if is_exhausted(error):
            raise
        raise VoiceError(f"{path}: {error.strerror}") from None
    if data is None:
        raise VoiceError(f"{path}: too large for a speaker embedding")
    return from_bytes(data, str(path))


def from_bytes(data: bytes, name: str) -> bytes:
    """Embedding of the contents of a file of that name, as `from_file`.

    A `.pt` is read with `weights_only=True`, so that nothing in it is executed.
    """
    try:
        if name.endswith(".pt"):
            with warnings.catch_warnings():
                # torch warns of pickles it did not write, before it refuses them
                warnings.simplefilter("ignore")
                loaded = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
            return _from_tensor(loaded)
        return from_string(data.decode("utf-8"))
    except VoiceError as error:
        raise VoiceError(f"{name}: {error}") from None
    # torch raises whatever the damage of a file leads to
    except Exception as error:  # noqa: BLE001
        reason = str(error).strip().splitlines() or ["unreadable"]
        raise VoiceError(f"{name}: not a speaker embedding: {reason[0]}") from None


def checked(embedding: bytes) -> bytes:
    """The embedding itself if it has 768 finite numbers that are not all zero."""
    if len(embedding) != 2 * EMBEDDING_SIZE:
        raise VoiceError(f"has {len(embedding) // 2} numbers, not {EMBEDDING_SIZE}")
    values = np.frombuffer(embedding, dtype="<f2").astype(np.float32)
    if not np.isfinite(values).all() or not values.any():
        raise VoiceError("has numbers that are not finite, or is all zero")
    return embedding


def unit_vector(embedding: bytes) -> torch.Tensor:
    """`[768]` float32 of length one: what stands at the `[spk_emb]` position of a prompt."""
    # normalised in fp16 as the package does, so that prompts are equal to the last bit
    values = torch.frombuffer(bytearray(embedding), dtype=torch.float16)
    return torch.nn.functional.normalize(values, dim=0, eps=1e-12).float()


def _from_tensor(value: object) -> bytes:
    if not isinstance(value, torch.Tensor):
        raise VoiceError(f"holds {type(value).__name__}, not a tensor")
    return checked(_bytes(value.detach().flatten().to(torch.float16)))


def _bytes(values: torch.Tensor) -> bytes:
    return values.contiguous().numpy().astype("<f2").tobytes()


@cache
def _statistics() -> tuple[torch.Tensor, torch.Tensor]:
    """`std`, `mean`, each `[768]` fp16, from the text of the package's `config/config.py`."""
    tree = ast.parse(package_resource("config/config.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "spk_stat":
            if node.value is None:
                break
            packed = pybase16384.decode_from_string(ast.literal_eval(node.value))
            values = torch.frombuffer(bytearray(packed), dtype=torch.float16)
            std, mean = values.chunk(2)
            return std, mean
    raise VoiceError("spk_stat is missing in the ChatTTS package")
