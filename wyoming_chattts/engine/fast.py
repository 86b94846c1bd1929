"""The fast engine: our own decoder and codec over the released weights.

Reads safetensors itself; imports nothing of ChatTTS, transformers, torchaudio or vocos. Each slot
goes refine (optional) → prefill → decode → codec; `burst()` advances all of them. Runs on the
inference thread.
"""

import logging
import time
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F

from ..config import EngineConfig, SamplingConfig, StreamConfig
from . import layout, native
from .base import (
    EMPTY_AUDIO,
    End,
    EngineInfo,
    FloatAudio,
    Mel,
    Prompt,
    Sampling,
    SlotOutput,
    expected_steps,
)
from .checkpoint import Checkpoint
from .codec import Codec, CodecStream, vocode_mel
from .decode import NOISE_BLOCK, Decode
from .device import pick_device, set_threads
from .fused import Kernels
from .gpt import Gpt, Transformer, buckets
from .gpt_native import NativeGpt, fits
from .graphs import StepRunner
from .layout import AUDIO_VOCAB, CODEBOOKS
from .prompt import code_prompt
from .quantize import resolve
from .refine import Refine
from .speaker import unit_vector
from .tokenizer import Tokenizer
from .weights import read_tensors, weight_normed

_LOGGER = logging.getLogger(__name__)

_WARM_BUCKETS = 3
_CPU_BUCKET = 16
EMPTY_RETRIES = 3
"""Tries with other noise after an end code at step 0 (the ChatTTS package tries without end)."""


@dataclass(slots=True)
class _Slot:
    """What the host knows of a running slot."""

    prompt: Prompt
    sampling: Sampling
    codec: CodecStream
    generator: torch.Generator
    refine: Refine | None = None
    paced: bool = False
    embedded: torch.Tensor | None = None
    prompt_tokens: int = 0
    drawn: int = 0
    """Upper bound of the codes drawn; the exact number is on the device."""
    noise_until: int = 0
    attempts: int = 0
    prefill_s: float = 0.0
    limit: int = 0
    """Steps at which the segment is cut."""


class FastEngine:
    """An `Engine` over a checkpoint."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        engine: EngineConfig,
        sampling: SamplingConfig,
        stream: StreamConfig,
    ) -> None:
        """Loads the weights. Raises `CheckpointError`, or `ConfigError` for a bad device."""
        device = pick_device(engine.device)
        if device.type == "cpu":
            set_threads(engine.threads)
        precision = resolve(engine.precision, device)
        slots = engine.slots or (8 if device.type == "cuda" else 4)
        embed = read_tensors(checkpoint.file(layout.EMBED))
        self._device = device
        self._checkpoint = checkpoint
        self._lookahead = stream.lookahead
        self._tokenizer = Tokenizer(checkpoint.file(layout.TOKENIZER))
        self._text_embed = embed["emb_text.weight"].to(device)
        kernels = Kernels.compiled() if engine.compiled and device.type == "cuda" else Kernels()
        self._gpt = _transformer(checkpoint, engine, precision, slots, device, kernels)
        self._decode = Decode(
            self._gpt,
            embed,
            max_steps=sampling.max_steps,
            max_k=sampling.top_k,
            device=device,
            kernels=kernels,
        )
        self._runner = StepRunner(self._decode, use_graphs=engine.cuda_graphs)
        # the text head weighs 65 MB, so it goes to the device only if it is used
        self._embed = embed
        self._text_head: torch.Tensor | None = None
        self._codec = Codec(
            read_tensors(checkpoint.file(layout.DECODER)),
            read_tensors(checkpoint.file(layout.VOCOS)),
            checkpoint.dims,
            device,
            torch.float16 if device.type == "cuda" and precision != "fp32" else torch.float32,
        )
        self._buckets = buckets(engine.context)
        self._slots: dict[int, _Slot] = {}
        self.info = EngineInfo(
            name="ChatTTS",
            identity=f"{checkpoint.hash}/{precision}/{type(self._gpt).__name__}"
            f"/lookahead={stream.lookahead}",
            device=str(device),
            precision=precision,
            slots=slots,
            description="random weights: noise, not a voice" if checkpoint.synthetic else "ChatTTS",
            cacheable=True,
            has_mel=True,
            synthetic=checkpoint.synthetic,
        )

    @torch.inference_mode()
    def start(self, slot: int, prompt: Prompt, sampling: Sampling) -> None:
        """Takes a segment into a free slot; without a refine pass, prefills it at once."""
        if slot in self._slots or not 0 <= slot < self.info.slots:
            raise ValueError(f"slot {slot} is not free")
        paced = self._checkpoint.synthetic
        if paced:
            steps = min(expected_steps(prompt.text), sampling.max_steps)
            sampling = replace(sampling, min_steps=steps, max_steps=steps)
        state = _Slot(
            prompt=prompt,
            sampling=sampling,
            codec=CodecStream(self._codec, self._lookahead),
            generator=torch.Generator(device=self._device).manual_seed(sampling.seed),
            paced=paced,
        )
        if prompt.refine:
            self._decode.park(slot)
            state.refine = Refine(
                self._gpt, self._tokenizer, self._text_embed, self._head(), slot, state.generator
            )
            state.refine.begin(prompt, paced=paced)
        else:
            self._prefill(slot, state)
        self._slots[slot] = state

    @torch.inference_mode()
    def burst(self, n_steps: int) -> list[SlotOutput]:
        """Advances every running slot; the host waits for the device once, at the end."""
        for slot, state in self._slots.items():
            if state.refine is not None and (text := state.refine.burst(n_steps)) is not None:
                state.refine = None
                state.prompt = replace(state.prompt, text=text)
                self._prefill(slot, state)
        running = {slot: s for slot, s in self._slots.items() if s.refine is None}
        if not running:
            return []
        self._advance(running, n_steps)
        decode = self._decode
        steps, done, broken = torch.stack(
            (decode.steps, decode.done.long(), decode.broken.long())
        ).tolist()
        return [
            self._broken(slot, steps[slot])
            if broken[slot]
            else self._collect(slot, state, steps[slot], bool(done[slot]))
            for slot, state in running.items()
        ]

    def stop(self, slot: int) -> None:
        """Frees a slot."""
        if self._slots.pop(slot, None) is not None:
            self._decode.release(slot)

    @torch.inference_mode()
    def vocode(self, mel: Mel) -> FloatAudio:
        """Audio of a whole segment from its mel frames."""
        return vocode_mel(self._codec, mel)

    def reset(self) -> None:
        """Frees all slots."""
        for slot in list(self._slots):
            self.stop(slot)
        self._decode.done.fill_(True)

    def warm_up(self) -> None:
        """Decodes a short segment in every slot, so that each kernel and buffer was used once,
        and captures the graphs of usual contexts."""
        with torch.inference_mode():
            self._runner.capture_all(self._buckets[:_WARM_BUCKETS])
        sampling = Sampling(min_steps=40, max_steps=40)
        for slot in range(self.info.slots):
            self.start(slot, Prompt("Warm up."), sampling)
            self.burst(4)
        while self._slots:
            self.burst(8)

    def close(self) -> None:
        """Forgets the weights and gives cached device memory back."""
        self._slots.clear()
        self.__dict__ = {"info": self.info}
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _head(self) -> torch.Tensor:
        if self._text_head is None:
            self._text_head = weight_normed(self._embed, "head_text").to(self._device)
        return self._text_head

    def _prefill(self, slot: int, state: _Slot) -> None:
        begin = time.perf_counter()
        if state.embedded is None:
            state.embedded = self.embed_prompt(state.prompt)
        state.prompt_tokens = state.embedded.shape[0]
        state.drawn = 1
        state.noise_until = 0
        self._fill_noise(slot, state, NOISE_BLOCK)
        state.limit = self._decode.begin(slot, state.embedded, state.sampling)
        state.prefill_s += time.perf_counter() - begin

    def embed_prompt(self, prompt: Prompt) -> torch.Tensor:
        """`[tokens, hidden]` embeddings of a prompt, the speaker's in its place.

        A prompt that leaves less than a quarter of the context for speech is cut.
        """
        ids = self._tokenizer.encode(code_prompt(prompt))
        recorded = len(prompt.recording.codes) // (2 * CODEBOOKS) if prompt.recording else 0
        limit = max(16, self._gpt.context * 3 // 4 - recorded)
        if len(ids) > limit:
            _LOGGER.warning("a prompt of %d tokens is cut to %d", len(ids), limit)
            ids = [*ids[: limit - 1], ids[-1]]
        index = torch.tensor(ids, device=self._device)
        embedded = F.embedding(index, self._text_embed)
        if prompt.speaker is not None:
            speaker = unit_vector(prompt.speaker).to(self._device)
            embedded = torch.where(
                (index == self._tokenizer.speaker_id)[:, None], speaker, embedded
            )
        if prompt.recording is not None:
            codes = torch.frombuffer(bytearray(prompt.recording.codes), dtype=torch.int16)
            spoken = codes.long().view(CODEBOOKS, -1).t().to(self._device)
            embedded = torch.cat((embedded, self._decode.embed(spoken)))
        return embedded

    def _advance(self, running: dict[int, _Slot], n_steps: int) -> None:
        """Up to `n_steps` decode steps of slots `0..highest`; fewer where a chunk of audio is due
        before, so that nobody waits for it to the end of a burst."""
        rows = max(running) + 1
        due = [ahead for s in running.values() if (ahead := s.codec.next_at - s.drawn) > 0]
        n_steps = min([n_steps, *due])
        for slot, state in running.items():
            self._fill_noise(slot, state, state.drawn + n_steps)
        furthest = max(state.prompt_tokens + state.drawn for state in running.values())
        for i in range(n_steps):
            self._runner.step(rows, self._bucket(furthest + i))
            # on the CPU a look at `done` costs nothing, and saves steps that nobody needs
            if self._device.type == "cpu" and bool(self._decode.done[:rows].all()):
                break
        for state in running.values():
            state.drawn += n_steps

    def _bucket(self, length: int) -> int:
        """Positions that attention looks at: few different numbers where graphs are captured for
        each; on a CPU hardly more than there are, since it reads the cache of them all."""
        if self._device.type == "cpu":
            return min(-(-length // _CPU_BUCKET) * _CPU_BUCKET, self._gpt.context)
        return next((size for size in self._buckets if size >= length), self._buckets[-1])

    def _fill_noise(self, slot: int, state: _Slot, until: int) -> None:
        """Draws noise block by block, so that step `until` has its own."""
        shape = (NOISE_BLOCK, CODEBOOKS, AUDIO_VOCAB)
        while state.noise_until < until:
            half = state.noise_until % (2 * NOISE_BLOCK)
            block = self._decode.noise[slot, half : half + NOISE_BLOCK]
            if state.sampling.greedy:
                block.fill_(1.0)
            else:
                noise = torch.empty(shape, device=self._device)
                block.copy_(noise.exponential_(generator=state.generator))
            state.noise_until += NOISE_BLOCK

    def _broken(self, slot: int, steps: int) -> SlotOutput:
        """The end of a slot whose hidden states are not finite; what was heard before stands."""
        self.stop(slot)
        return SlotOutput(slot, EMPTY_AUDIO, None, steps, End.BROKEN)

    def _collect(self, slot: int, state: _Slot, steps: int, done: bool) -> SlotOutput:
        """What a slot has to show after a burst; frees it if it is done."""
        if done and steps == 0:
            state.attempts += 1
            if state.attempts < EMPTY_RETRIES:
                _LOGGER.debug("slot %d: the end code came first, trying other noise", slot)
                self._prefill(slot, state)
                return SlotOutput(slot, EMPTY_AUDIO, None, 0)
            self.stop(slot)
            return SlotOutput(slot, EMPTY_AUDIO, None, 0, End.EMPTY)
        begin = time.perf_counter()
        made = state.codec.push(self._decode.hidden[slot, :steps], final=done)
        audio, mel = made if made is not None else (EMPTY_AUDIO, None)
        if not np.isfinite(audio).all():
            return self._broken(slot, steps)
        end = None
        if done:
            end = End.COMPLETE if steps < state.limit or state.paced else End.LIMIT
            self.stop(slot)
        prefill_s, state.prefill_s = state.prefill_s, 0.0
        codec_s = time.perf_counter() - begin
        return SlotOutput(slot, audio, mel, steps, end, prefill_s, codec_s)


def _transformer(
    checkpoint: Checkpoint,
    engine: EngineConfig,
    precision: str,
    slots: int,
    device: torch.device,
    kernels: Kernels,
) -> Transformer:
    """The fastest that there is for a device and precision."""
    tensors, dims = read_tensors(checkpoint.file(layout.GPT)), checkpoint.dims
    native_fits = engine.compiled and device.type == "cpu" and precision == "int8" and fits(dims)
    library = native.load() if native_fits else None
    if library is not None:
        return NativeGpt(library, tensors, dims, slots=slots, context=engine.context)
    return Gpt(
        tensors,
        dims,
        slots=slots,
        context=engine.context,
        precision=precision,
        device=device,
        kernels=kernels,
    )
