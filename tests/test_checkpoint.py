"""Model files: found, verified, hashed; each fault named."""

import json
import os
import shutil
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from wyoming_chattts.engine import layout
from wyoming_chattts.engine.checkpoint import (
    MARKER,
    HashMemo,
    download,
    file_sha256,
    known_sums,
    open_checkpoint,
)
from wyoming_chattts.engine.synthetic import synthesize_checkpoint
from wyoming_chattts.errors import CheckpointError

from .fake_hub import fake_hub


@pytest.fixture
def model(tiny_dir: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_dir, folder)
    return folder


def test_a_good_checkpoint_opens(model: Path) -> None:
    checkpoint = open_checkpoint(model)
    assert checkpoint.synthetic
    assert checkpoint.dims == layout.TINY
    assert len(checkpoint.hash) == 64


@pytest.mark.parametrize("name", layout.FILES)
def test_a_missing_file_is_named(model: Path, name: str) -> None:
    (model / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name}: missing"):
        open_checkpoint(model)


@pytest.mark.parametrize("name", [n for n in layout.FILES if n.endswith("safetensors")])
def test_a_truncated_file_is_named(model: Path, name: str) -> None:
    path = model / name
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)
    with pytest.raises(CheckpointError, match=f"{name}: truncated"):
        open_checkpoint(model, verify=False)


@pytest.mark.parametrize(
    "data", [b"", b"abc", struct.pack("<Q", 10) + b"not json!!", struct.pack("<Q", 2**60) + b"{}"]
)
def test_a_file_that_is_not_safetensors_is_named(model: Path, data: bytes) -> None:
    (model / layout.VOCOS).write_bytes(data)
    with pytest.raises(CheckpointError, match=r"Vocos\.safetensors: "):
        open_checkpoint(model, verify=False)


def test_a_wrong_hash_is_named_and_verify_off_lets_it_pass(model: Path) -> None:
    tensors = load_file(model / layout.DECODER)
    tensors["coef"] += 1
    save_file(tensors, model / layout.DECODER)
    with pytest.raises(CheckpointError, match=r"Decoder\.safetensors: sha256.*model.verify"):
        open_checkpoint(model)
    assert open_checkpoint(model, verify=False).hash


@pytest.mark.parametrize("fault", ["shape", "missing"])
def test_a_wrong_tensor_is_named(model: Path, fault: str) -> None:
    tensors = load_file(model / layout.GPT)
    name = "layers.1.mlp.up_proj.weight"
    if fault == "shape":
        tensors[name] = torch.zeros(5, 5)
    else:
        del tensors[name]
    save_file(tensors, model / layout.GPT)
    with pytest.raises(CheckpointError, match=rf"model\.safetensors: tensor {name}"):
        open_checkpoint(model, verify=False)


@pytest.mark.parametrize("text", ["", "[]", '{"num_hidden_layers": 3}'])
def test_a_wrong_config_is_named(model: Path, text: str) -> None:
    (model / layout.GPT_CONFIG).write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json: "):
        open_checkpoint(model, verify=False)


@pytest.mark.parametrize("text", ["", "{}", '{"dims": {"hidden": 1, "x": 2}, "sha256": {}}'])
def test_a_wrong_marker_is_named(model: Path, text: str) -> None:
    (model / MARKER).write_text(text)
    with pytest.raises(CheckpointError, match=MARKER):
        open_checkpoint(model)


def test_the_hash_covers_every_file_that_shapes_sound(model: Path) -> None:
    hashes = {open_checkpoint(model, verify=False).hash}
    for name in (layout.EMBED, layout.DECODER, layout.VOCOS, layout.GPT):
        tensors = load_file(model / name)
        key = next(k for k in tensors if tensors[k].is_floating_point())
        tensors[key] = tensors[key] + 1
        save_file(tensors, model / name)
        hashes.add(open_checkpoint(model, verify=False).hash)
    (model / layout.TOKENIZER).write_text((model / layout.TOKENIZER).read_text() + " ")
    hashes.add(open_checkpoint(model, verify=False).hash)
    assert len(hashes) == 6


def test_hashes_are_remembered_by_size_and_time(tmp_path: Path) -> None:
    file, notes = tmp_path / "f", tmp_path / "notes" / "hashes.json"
    file.write_bytes(b"one")
    first = HashMemo(notes).sha256(file)
    assert first == file_sha256(file)
    known = json.loads(notes.read_text())
    known[str(file.resolve())][2] = "remembered"
    notes.write_text(json.dumps(known))
    assert HashMemo(notes).sha256(file) == "remembered"
    file.write_bytes(b"longer")
    assert HashMemo(notes).sha256(file) == file_sha256(file)
    notes.write_text("junk")
    assert HashMemo(notes).sha256(file) == file_sha256(file)


def test_without_a_file_nothing_is_written(tiny_dir: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in tiny_dir.rglob("*")}
    assert open_checkpoint(tiny_dir).hash == open_checkpoint(tiny_dir, memo=HashMemo(None)).hash
    assert before == {path: path.stat().st_mtime_ns for path in tiny_dir.rglob("*")}
    assert Path(os.devnull).is_char_device()


def test_a_seed_makes_the_same_checkpoint(tiny_dir: Path, tmp_path: Path) -> None:
    synthesize_checkpoint(tmp_path / "a", "tiny", 1)
    synthesize_checkpoint(tmp_path / "b", "tiny", 2)
    assert open_checkpoint(tmp_path / "a").hash == open_checkpoint(tiny_dir).hash
    assert open_checkpoint(tmp_path / "b").hash != open_checkpoint(tiny_dir).hash
    note = json.loads((tmp_path / "a" / MARKER).read_text())["note"]
    assert "noise, not a voice" in note


def test_sums_of_the_released_files_are_known() -> None:
    sums = known_sums()
    assert set(sums) == set(layout.FILES)
    assert all(len(value) == 64 for value in sums.values())


def test_a_download_resumes_and_gives_progress(tiny_dir: Path, tmp_path: Path) -> None:
    seen: list[int] = []
    folder = tmp_path / "model"
    with fake_hub(tiny_dir) as hub:
        (folder / "asset").mkdir(parents=True)
        shutil.copy(tiny_dir / layout.EMBED, folder / layout.EMBED)
        download(
            folder,
            repo="2Noise/ChatTTS",
            endpoint=hub.endpoint,
            progress=lambda done, total: seen.append(done),
        )
        assert not any("Embed" in request for request in hub.requests)
    assert seen and seen == sorted(seen)
    shutil.copy(tiny_dir / MARKER, folder / MARKER)
    assert open_checkpoint(folder).hash == open_checkpoint(tiny_dir).hash
