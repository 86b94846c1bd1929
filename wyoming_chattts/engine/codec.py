"""From the GPT's hidden states to samples: the decoder (to mel frames) and Vocos, streaming.

Two mel frames are one decode step; a hop is 256 samples. The decoder's convolutions see 75 frames
to each side, Vocos 29 more (its inverse STFT included), so a step's samples are final only when 52
further steps are known. `CodecStream` decodes chunk by chunk and keeps, for each convolution, the
frames before the next chunk: a chunk costs its own steps and those of the look-ahead, and with a
look-ahead of 52 steps every sample equals that of decoding the segment whole. A smaller look-ahead
treats what is not known yet as the end of the segment.

Layers after the ChatTTS package's `model/dvae.py` and the vocos package's `models.py`.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from .base import FRAMES_PER_STEP, MEL_HOP, SAMPLES_PER_STEP, FloatAudio, Mel
from .layout import N_FFT, Dims
from .weights import Tensors

FULL_LOOKAHEAD = 52
"""Steps after which a step's samples are final."""
CHUNK_STEPS = (8, 8, 8, 12, 16, 24, 32)
"""Steps of the first chunks of a segment; the last repeats. Each chunk must be there before those
before it have been played: growth by half asks for no more than two thirds of real time."""
_SPECTRUM_CONTEXT = 3
"""Frames that a hop of the inverse STFT takes from before."""
_LAYER_NORM_EPS = 1e-6
_MAX_MAGNITUDE = 1e2


@dataclass(frozen=True, slots=True)
class _Block:
    """A ConvNeXt block."""

    depthwise: torch.Tensor
    depthwise_bias: torch.Tensor
    norm: torch.Tensor
    norm_bias: torch.Tensor
    expand: torch.Tensor
    expand_bias: torch.Tensor
    contract: torch.Tensor
    contract_bias: torch.Tensor
    scale: torch.Tensor
    dilation: int

    def __call__(self, x: torch.Tensor, before: "_Before") -> torch.Tensor:
        """`[1, channels, frames]` to the same shape."""
        channels = x.shape[1]
        y = F.conv1d(
            before.around(x, 3 * self.dilation),
            self.depthwise,
            self.depthwise_bias,
            dilation=self.dilation,
            groups=channels,
        ).transpose(1, 2)
        y = F.layer_norm(y, (channels,), self.norm, self.norm_bias, _LAYER_NORM_EPS)
        # these two products are nearly all of a block's arithmetic, and may be in half precision
        y = F.gelu(F.linear(y.to(self.expand.dtype), self.expand, self.expand_bias))
        y = F.linear(y, self.contract, self.contract_bias) * self.scale
        return x + y.transpose(1, 2)


class _Before:
    """What each layer keeps of the frames before a chunk, in the order in which they run.

    `fresh` frames of a chunk are given out; the rest is look-ahead, and comes again.
    """

    def __init__(self) -> None:
        self._kept: list[torch.Tensor] = []
        self._at = 0
        self._fresh = 0

    def begin(self, fresh: int) -> "_Before":
        """For the next chunk."""
        self._at, self._fresh = 0, fresh
        return self

    def joined(self, x: torch.Tensor, reach: int) -> torch.Tensor:
        """`[1, channels, frames]` after up to `reach` frames from before; none at the beginning."""
        if self._at == len(self._kept):
            self._kept.append(x[..., :0])
        joined = torch.cat((self._kept[self._at], x), dim=2)
        seen = joined.shape[2] - x.shape[2] + self._fresh
        # a copy: what is kept must not hold all the rest
        self._kept[self._at] = joined[..., max(0, seen - reach) : seen].clone()
        self._at += 1
        return joined

    def around(self, x: torch.Tensor, reach: int) -> torch.Tensor:
        """`x` with `reach` frames from before and zeros after, for a convolution; zeros before
        where the segment begins."""
        joined = self.joined(x, reach)
        return F.pad(joined, (reach + x.shape[2] - joined.shape[2], reach))


class Codec:
    """Decoder and vocoder weights, fp32, but for the feed-forward layers in `dtype`.

    In fp16 those leave the samples 65 dB above the error on random weights (`bench codec`), in bf16
    47 dB; convolutions, norms and the inverse STFT have too wide a range for halves.
    """

    def __init__(
        self,
        decoder: Tensors,
        vocos: Tensors,
        dims: Dims,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.device = device
        self._decoder = {name: tensor.to(device) for name, tensor in decoder.items()}
        self._vocos = {
            name: tensor.to(device)
            for name, tensor in vocos.items()
            if not name.startswith("feature_extractor.")
        }
        self._decoder_blocks = [
            _block(self._decoder, f"decoder.decoder_block.{i}.", "weight", dtype, dilation=2)
            for i in range(dims.decoder_layers)
        ]
        self._vocos_blocks = [
            _block(self._vocos, f"backbone.convnext.{i}.", "gamma", dtype, dilation=1)
            for i in range(dims.vocos_layers)
        ]

    def mel(self, hidden: torch.Tensor, before: _Before | None = None) -> torch.Tensor:
        """Mel frames `[100, 2*steps]` of hidden states `[steps, hidden]`."""
        w = self._decoder
        steps, size = hidden.shape
        before = before or _Before().begin(FRAMES_PER_STEP * steps)
        # the halves of a hidden state are its two frames
        x = hidden.view(steps * FRAMES_PER_STEP, size // FRAMES_PER_STEP).t().unsqueeze(0)
        for name in ("decoder.conv_in.0", "decoder.conv_in.2"):
            x = F.conv1d(before.around(x, 1), w[f"{name}.weight"], w[f"{name}.bias"])
            x = F.gelu(x) if name.endswith("0") else x
        for block in self._decoder_blocks:
            x = block(x, before)
        x = F.conv1d(x, w["decoder.conv_out.weight"])
        x = F.conv1d(before.around(x, 1), w["out_conv.weight"])
        return (x * w["coef"])[0]

    def vocode(self, mel: torch.Tensor) -> torch.Tensor:
        """Samples `[(frames-1)*256]` of mel frames `[100, frames]`."""
        return self._istft(self._spectrum(mel, _Before().begin(mel.shape[1])))

    def vocode_chunk(self, mel: torch.Tensor, before: _Before) -> tuple[torch.Tensor, int]:
        """Samples of mel frames after those from before; and how many of them were given out
        already."""
        spectrum = self._spectrum(mel, before)
        joined = before.joined(spectrum, _SPECTRUM_CONTEXT)
        return self._istft(joined), (joined.shape[2] - spectrum.shape[2]) * MEL_HOP

    def _spectrum(self, mel: torch.Tensor, before: _Before) -> torch.Tensor:
        """STFT `[1, 513, frames]` of mel frames `[100, frames]`."""
        w = self._vocos
        x = before.around(mel.unsqueeze(0), 3)
        x = F.conv1d(x, w["backbone.embed.weight"], w["backbone.embed.bias"])
        channels = (x.shape[1],)
        x = F.layer_norm(
            x.transpose(1, 2), channels, w["backbone.norm.weight"], w["backbone.norm.bias"], 1e-6
        ).transpose(1, 2)
        for block in self._vocos_blocks:
            x = block(x, before)
        x = F.layer_norm(
            x.transpose(1, 2),
            channels,
            w["backbone.final_layer_norm.weight"],
            w["backbone.final_layer_norm.bias"],
            _LAYER_NORM_EPS,
        )
        x = F.linear(x, w["head.out.weight"], w["head.out.bias"]).transpose(1, 2)
        magnitude, phase = x.chunk(2, dim=1)
        return torch.polar(magnitude.exp().clamp(max=_MAX_MAGNITUDE), phase)

    def _istft(self, spectrum: torch.Tensor) -> torch.Tensor:
        window = self._vocos["head.istft.window"]
        return torch.istft(spectrum, N_FFT, MEL_HOP, N_FFT, window, center=True)[0]

    def decode(self, hidden: torch.Tensor) -> torch.Tensor:
        """Samples of a whole segment's hidden states `[steps, hidden]`: `(2*steps - 1) * 256`."""
        return self.vocode(self.mel(hidden))


class CodecStream:
    """One segment's way through the codec, chunk by chunk on a fixed schedule of steps.

    The schedule depends on step counts alone, so the audio of a segment does not depend on how
    its steps came in bursts.
    """

    def __init__(self, codec: Codec, lookahead: int) -> None:
        self._codec = codec
        self._lookahead = lookahead
        self._emitted = 0
        self._chunk = 0
        self._before_mel = _Before()
        self._before_audio = _Before()

    @property
    def next_at(self) -> int:
        """Steps that must be known for the next chunk."""
        return self._emitted + self._chunk_steps + self._lookahead

    @property
    def _chunk_steps(self) -> int:
        return CHUNK_STEPS[min(self._chunk, len(CHUNK_STEPS) - 1)]

    def push(self, hidden: torch.Tensor, *, final: bool) -> tuple[FloatAudio, Mel] | None:
        """Takes all hidden states so far `[steps, hidden]`; returns what became due, if anything.

        `final` says that no more will come: everything left is decoded. Audio is `[samples]`, mel
        `[100, frames]`. The very last hop has no samples of its own.
        """
        steps = hidden.shape[0]
        audio: list[torch.Tensor] = []
        mel: list[torch.Tensor] = []
        while self._emitted < steps:
            due, known = self._emitted + self._chunk_steps, self.next_at
            if known > steps:
                if not final:
                    break
                # what is left is decoded at once where the segment's end is within sight
                due, known = (steps, steps) if due >= steps else (due, min(known, steps))
            samples, frames = self._window(hidden, due, known, last=final and due == steps)
            audio.append(samples)
            mel.append(frames)
            self._emitted = due
            self._chunk += 1
        if not audio:
            return None
        return (
            torch.cat(audio).float().cpu().numpy(),
            torch.cat(mel, dim=1).to(torch.float16).cpu().numpy(),
        )

    def _window(
        self, hidden: torch.Tensor, due: int, known: int, *, last: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Samples and mel frames of steps `emitted..due`, looking ahead to step `known`."""
        steps = due - self._emitted
        frames = steps * FRAMES_PER_STEP
        mel = self._codec.mel(hidden[self._emitted : known], self._before_mel.begin(frames))
        samples, skipped = self._codec.vocode_chunk(mel, self._before_audio.begin(frames))
        stop = None if last else skipped + steps * SAMPLES_PER_STEP
        return samples[skipped:stop], mel[:, :frames]


def vocode_mel(codec: Codec, mel: Mel) -> FloatAudio:
    """Samples of stored mel frames `[100, frames]` fp16."""
    # a copy: what comes from the cache cannot be written to
    frames = torch.from_numpy(np.array(mel, dtype=np.float32)).to(codec.device)
    result: FloatAudio = codec.vocode(frames).cpu().numpy()
    return result


def _block(weights: Tensors, prefix: str, scale: str, dtype: torch.dtype, dilation: int) -> _Block:
    return _Block(
        depthwise=weights[f"{prefix}dwconv.weight"],
        depthwise_bias=weights[f"{prefix}dwconv.bias"],
        norm=weights[f"{prefix}norm.weight"],
        norm_bias=weights[f"{prefix}norm.bias"],
        expand=weights[f"{prefix}pwconv1.weight"].to(dtype),
        expand_bias=weights[f"{prefix}pwconv1.bias"].to(dtype),
        contract=weights[f"{prefix}pwconv2.weight"].to(dtype),
        contract_bias=weights[f"{prefix}pwconv2.bias"].to(dtype),
        scale=weights[f"{prefix}{scale}"],
        dilation=dilation,
    )
