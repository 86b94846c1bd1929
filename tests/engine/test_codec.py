"""The streaming codec: equal to decoding whole, without clicks, at linear cost."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from wyoming_chattts.engine import layout
from wyoming_chattts.engine.base import FloatAudio
from wyoming_chattts.engine.checkpoint import open_checkpoint
from wyoming_chattts.engine.codec import CHUNK_STEPS, FULL_LOOKAHEAD, Codec, CodecStream, vocode_mel
from wyoming_chattts.engine.weights import read_tensors


@pytest.fixture(scope="module", params=["tiny", "full"])
def codec(request: pytest.FixtureRequest) -> Codec:
    checkpoint = open_checkpoint(request.getfixturevalue(f"{request.param}_dir"), verify=False)
    return _codec(checkpoint.folder)


def _codec(folder: Path) -> Codec:
    checkpoint = open_checkpoint(folder, verify=False)
    return Codec(
        read_tensors(folder / layout.DECODER),
        read_tensors(folder / layout.VOCOS),
        checkpoint.dims,
        torch.device("cpu"),
    )


def _hidden(steps: int) -> torch.Tensor:
    return torch.randn((steps, 768), generator=torch.Generator().manual_seed(steps))


@torch.inference_mode()
def _streamed(
    codec: Codec, hidden: torch.Tensor, lookahead: int, burst: int
) -> tuple[list[FloatAudio], FloatAudio]:
    """Chunks as they leave, and all mel frames."""
    stream = CodecStream(codec, lookahead)
    chunks, mels = [], []
    steps = hidden.shape[0]
    for known in [*range(burst, steps, burst), steps]:
        made = stream.push(hidden[:known], final=known == steps)
        if made is not None:
            chunks.append(made[0])
            mels.append(made[1])
    return chunks, np.concatenate(mels, axis=1)


@pytest.mark.parametrize("steps", [1, 2, 7, 8, 9, 60, 61, 109, 240])
@pytest.mark.parametrize("burst", [1, 8, 31])
def test_with_the_full_look_ahead_every_sample_is_that_of_the_whole(
    codec: Codec, steps: int, burst: int
) -> None:
    if burst == 1 and steps > 61:
        pytest.skip("the same windows as with bursts of 8")
    hidden = _hidden(steps)
    with torch.inference_mode():
        whole = codec.decode(hidden).numpy()
        mel = codec.mel(hidden).numpy()
    chunks, mels = _streamed(codec, hidden, FULL_LOOKAHEAD, burst)
    audio = np.concatenate(chunks)
    assert audio.shape == whole.shape == ((2 * steps - 1) * 256,)
    assert np.abs(audio - whole).max() <= 1e-4
    assert mels.shape == mel.shape
    assert np.abs(mels - mel).max() < 0.01


@pytest.mark.parametrize("lookahead", [8, 16, 32])
def test_no_chunk_boundary_clicks(codec: Codec, lookahead: int) -> None:
    """The error against the whole is no larger at a boundary than the look-ahead explains, and
    the step from one sample to the next there is of the usual size."""
    hidden = _hidden(200)
    with torch.inference_mode():
        whole = codec.decode(hidden).numpy()
    chunks, _ = _streamed(codec, hidden, lookahead, 8)
    audio = np.concatenate(chunks)
    error = np.sqrt(((audio - whole) ** 2).mean()) / np.sqrt((whole**2).mean())
    assert error < {8: 0.1, 16: 0.02, 32: 0.002}[lookahead]
    usual = np.abs(np.diff(whole)).max()
    boundaries = np.cumsum([chunk.size for chunk in chunks])[:-1]
    for at in boundaries:
        assert abs(audio[at] - audio[at - 1]) <= 1.1 * usual


def test_the_first_chunk_leaves_after_its_steps_and_the_look_ahead(codec: Codec) -> None:
    hidden = _hidden(100)
    stream = CodecStream(codec, 16)
    with torch.inference_mode():
        assert stream.push(hidden[: CHUNK_STEPS[0] + 15], final=False) is None
        made = stream.push(hidden[: CHUNK_STEPS[0] + 16], final=False)
    assert made is not None and made[0].size == CHUNK_STEPS[0] * 512


def test_the_audio_does_not_depend_on_the_bursts(codec: Codec) -> None:
    hidden = _hidden(130)
    one = np.concatenate(_streamed(codec, hidden, 16, 8)[0])
    two = np.concatenate(_streamed(codec, hidden, 16, 29)[0])
    assert np.array_equal(one, two)


def test_stored_mel_frames_give_the_same_audio(codec: Codec) -> None:
    hidden = _hidden(90)
    with torch.inference_mode():
        whole = codec.decode(hidden).numpy()
        _, mels = _streamed(codec, hidden, FULL_LOOKAHEAD, 8)
        again = vocode_mel(codec, mels)
    assert again.shape == whole.shape
    # fp16 frames
    assert np.sqrt(((again - whole) ** 2).mean()) < 0.02 * np.sqrt((whole**2).mean())


def test_a_chunk_costs_its_steps_and_the_look_ahead(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in steps that go through the decoder."""
    codec = _codec(tiny_dir)
    steps = 0
    mel = Codec.mel

    def counted(self: Codec, hidden: torch.Tensor, *rest: Any) -> torch.Tensor:
        nonlocal steps
        steps += hidden.shape[0]
        return mel(self, hidden, *rest)

    monkeypatch.setattr(Codec, "mel", counted)
    chunks, _ = _streamed(codec, _hidden(800), 16, 8)
    assert steps <= 800 + 16 * len(chunks)
    assert len(chunks) < 800 / CHUNK_STEPS[-1] + len(CHUNK_STEPS) + 1


def test_each_chunk_is_there_before_the_last_was_played() -> None:
    """With decoder and codec together at 0.6 of real time, a chunk of n steps costs n and the
    look-ahead in the codec, and is begun when the one before it is done."""
    decode, codec, lookahead = 0.5, 0.05, 16
    schedule = [*CHUNK_STEPS, *[CHUNK_STEPS[-1]] * 5]
    done = (schedule[0] + lookahead) * (decode + codec)
    plays_until = done + schedule[0]
    for n in schedule[1:]:
        done += n * decode + (n + lookahead) * codec
        assert done <= plays_until
        plays_until += n
