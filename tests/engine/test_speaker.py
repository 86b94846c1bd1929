"""Speaker embeddings and the files they come in."""

import pickle
from pathlib import Path

import pybase16384
import pytest
import torch

from wyoming_chattts.engine import speaker
from wyoming_chattts.errors import VoiceError


def test_a_seed_is_always_the_same_voice() -> None:
    one, two = speaker.from_seed(2), speaker.from_seed(3)
    assert speaker.from_seed(2) == one != two
    assert len(one) == 1536
    # the first numbers, so that a change of torch's generator would be noticed
    values = torch.frombuffer(bytearray(one), dtype=torch.float16)[:3].tolist()
    assert values == pytest.approx(EXPECTED_SEED_2, abs=1e-3)


EXPECTED_SEED_2 = [-1.423828125, 3.95703125, -14.25]


def test_strings_and_files_give_the_embedding_back(tmp_path: Path) -> None:
    embedding = speaker.from_seed(7)
    text = speaker.to_string(embedding)
    assert speaker.from_string(f" {text}\n") == embedding
    (tmp_path / "v.txt").write_text(text, encoding="utf-8")
    assert speaker.from_file(tmp_path / "v.txt") == embedding
    values = torch.frombuffer(bytearray(embedding), dtype=torch.float16).clone()
    torch.save(values, tmp_path / "v.pt")
    assert speaker.from_file(tmp_path / "v.pt") == embedding
    torch.save(values.float()[None], tmp_path / "v.pt")
    assert speaker.from_file(tmp_path / "v.pt") == embedding


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return (os.mkdir, (str(self.path),))


def test_a_malicious_file_executes_nothing(tmp_path: Path) -> None:
    target = tmp_path / "exploded"
    torch.save(Bomb(target), tmp_path / "bomb.pt")
    (tmp_path / "raw.pt").write_bytes(pickle.dumps(Bomb(target)))
    for name in ("bomb.pt", "raw.pt"):
        with pytest.raises(VoiceError, match=name):
            speaker.from_file(tmp_path / name)
    assert not target.exists()


@pytest.mark.parametrize("data", [b"", b"junk", b"\x80\x04junk", "蘁淰".encode(), b"\xff" * 100])
@pytest.mark.parametrize("suffix", [".pt", ".txt"])
def test_a_file_that_is_no_voice_is_named(tmp_path: Path, data: bytes, suffix: str) -> None:
    path = tmp_path / f"bad{suffix}"
    path.write_bytes(data)
    with pytest.raises(VoiceError, match="bad"):
        speaker.from_file(path)


def test_wrong_contents_are_refused(tmp_path: Path) -> None:
    for i, value in enumerate((torch.zeros(768), torch.ones(5), torch.full((768,), torch.nan), {})):
        torch.save(value, tmp_path / f"{i}.pt")
        with pytest.raises(VoiceError, match=rf"{i}\.pt"):
            speaker.from_file(tmp_path / f"{i}.pt")
    with pytest.raises(VoiceError, match=r"none\.pt"):
        speaker.from_file(tmp_path / "none.pt")
    (tmp_path / "large.txt").write_bytes(bytes(2_000_000))
    with pytest.raises(VoiceError, match="too large"):
        speaker.from_file(tmp_path / "large.txt")


def test_a_string_that_unpacks_to_much_is_cut_off() -> None:
    import lzma

    packed = lzma.compress(bytes(50_000_000), format=lzma.FORMAT_RAW, filters=speaker._FILTERS)
    with pytest.raises(VoiceError, match="numbers, not 768"):
        speaker.from_string(pybase16384.encode_to_string(packed))
