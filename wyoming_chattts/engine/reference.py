"""The stock ChatTTS package behind the engine protocol: one slot, for comparison.

Imports the package on use only. Its faults are handled here: `requests` is declared by us, its
`load()` insists on released sums and its own download tool (so `_load()` is given paths), and its
configuration is class-level state (so sizes of synthetic checkpoints are set on fresh objects).
Its streaming decodes the whole prefix again for each chunk; what it yields is passed on as it is.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ..config import EngineConfig
from ..errors import ConfigError
from . import layout
from .base import (
    EMPTY_AUDIO,
    SAMPLES_PER_STEP,
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
from .device import pick_device, set_threads
from .prompt import refine_style
from .speaker import codes_to_string, to_string

_LOGGER = logging.getLogger(__name__)


def load_chat(checkpoint: Checkpoint, device: torch.device) -> Any:
    """A `ChatTTS.Chat` over a checkpoint. Raises `ConfigError` where the package cannot load."""
    try:
        import ChatTTS
        from ChatTTS.config import config as stock
    except ImportError as error:
        raise ConfigError(
            f"engine.kind: reference needs the ChatTTS package with requests, torchaudio and "
            f"transformers below 5.40: {error}"
        ) from None
    logger = logging.getLogger("ChatTTS")
    # it warns of every segment that ends at a limit, and at INFO shows the texts
    logger.setLevel(logging.ERROR)
    chat = ChatTTS.Chat(logger)
    d = checkpoint.dims
    chat.config = stock.Config(
        decoder=stock.Decoder(
            idim=d.hidden // 2,
            odim=d.hidden // 2,
            hidden=d.decoder_hidden,
            n_layer=d.decoder_layers,
            bn_dim=d.decoder_bottleneck,
        ),
        dvae=stock.DVAE(
            encoder=stock.Decoder(
                idim=d.dvae_dim,
                odim=d.dvae_latent,
                hidden=d.dvae_hidden,
                n_layer=d.dvae_layers,
                bn_dim=d.decoder_bottleneck,
            ),
            decoder=stock.Decoder(
                idim=d.dvae_dim,
                odim=d.dvae_dim,
                hidden=d.dvae_hidden,
                n_layer=d.dvae_layers,
                bn_dim=d.decoder_bottleneck,
            ),
            vq=stock.VQ(dim=d.dvae_latent),
        ),
        gpt=stock.GPT(
            hidden_size=d.hidden,
            intermediate_size=d.mlp,
            num_attention_heads=d.heads,
            num_hidden_layers=d.layers,
            num_text_tokens=d.text_vocab,
        ),
        embed=stock.Embed(hidden_size=d.hidden, num_text_tokens=d.text_vocab),
        vocos=stock.Vocos(
            backbone=stock.Backbone(
                init_args=stock.BackboneInitArgs(
                    dim=d.vocos_dim, intermediate_dim=d.vocos_mlp, num_layers=d.vocos_layers
                )
            ),
            head=stock.FourierHead(init_args=stock.FourierHeadInitArgs(dim=d.vocos_dim)),
        ),
    )
    loaded = chat._load(
        device=device,
        vocos_ckpt_path=str(checkpoint.file(layout.VOCOS)),
        dvae_ckpt_path=str(checkpoint.file(layout.DVAE)),
        gpt_ckpt_path=str(checkpoint.file(layout.GPT).parent),
        embed_path=str(checkpoint.file(layout.EMBED)),
        decoder_ckpt_path=str(checkpoint.file(layout.DECODER)),
        tokenizer_path=str(checkpoint.file(layout.TOKENIZER).parent),
    )
    if not loaded:
        raise ConfigError("engine.kind: the ChatTTS package did not load this checkpoint")
    return chat


class ReferenceEngine:
    """An `Engine` of one slot over `ChatTTS.Chat`."""

    def __init__(self, checkpoint: Checkpoint, engine: EngineConfig) -> None:
        device = pick_device(engine.device)
        if device.type == "cpu":
            set_threads(engine.threads)
        self._checkpoint = checkpoint
        self._chat = load_chat(checkpoint, device)
        self._running: Iterator[Any] | None = None
        self._samples = 0
        self._limit = 0
        self.info = EngineInfo(
            name="ChatTTS (stock)",
            identity=f"{checkpoint.hash}/reference",
            device=str(device),
            precision="fp32",
            slots=1,
            description="the stock ChatTTS package",
            cacheable=True,
            synthetic=checkpoint.synthetic,
        )

    def start(self, slot: int, prompt: Prompt, sampling: Sampling) -> None:
        """Begins a streaming synthesis."""
        if slot != 0 or self._running is not None:
            raise ValueError(f"slot {slot} is not free")
        chat = self._chat
        if self._checkpoint.synthetic:
            steps = min(expected_steps(prompt.text), sampling.max_steps)
            sampling = replace(sampling, min_steps=steps, max_steps=steps)
        code = chat.InferCodeParams(
            prompt=f"[speed_{prompt.style.speed}]",
            spk_emb=to_string(prompt.speaker) if prompt.speaker is not None else None,
            top_P=sampling.top_p,
            top_K=sampling.top_k,
            temperature=sampling.temperature,
            repetition_penalty=sampling.repetition_penalty,
            min_new_token=sampling.min_steps,
            max_new_token=sampling.max_steps,
            show_tqdm=False,
            ensure_non_empty=True,
            spk_smp=codes_to_string(prompt.recording.codes) if prompt.recording else None,
            txt_smp=prompt.recording.transcript if prompt.recording else None,
        )
        # the package re-seeds at each step where it is given a seed; seeding once is ours to do
        torch.manual_seed(sampling.seed)
        self._limit = sampling.max_steps
        self._samples = 0
        self._running = iter(
            chat.infer(
                [prompt.text],
                stream=True,
                skip_refine_text=not prompt.refine,
                do_text_normalization=False,
                do_homophone_replacement=False,
                split_text=False,
                params_refine_text=chat.RefineTextParams(
                    prompt=refine_style(prompt.style), show_tqdm=False
                ),
                params_infer_code=code,
            )
        )

    def burst(self, n_steps: int) -> list[SlotOutput]:
        """Goes on to the package's next chunk, which comes every 24 steps whatever `n_steps`."""
        if self._running is None:
            return []
        try:
            audio = np.ascontiguousarray(next(self._running)[0], dtype=np.float32)
        except StopIteration:
            self._running = None
            steps = round(self._samples / SAMPLES_PER_STEP)
            end = End.COMPLETE if self._samples else End.EMPTY
            return [SlotOutput(0, EMPTY_AUDIO, None, steps, end)]
        self._samples += audio.size
        return [SlotOutput(0, audio, None, round(self._samples / SAMPLES_PER_STEP))]

    def stop(self, slot: int) -> None:
        """Interrupts the synthesis."""
        if self._running is not None:
            self._chat.interrupt()
            close = getattr(self._running, "close", None)
            if close is not None:
                close()
            self._running = None

    def vocode(self, mel: Mel) -> FloatAudio:
        """Audio of mel frames."""
        frames = torch.from_numpy(np.array(mel, dtype=np.float32))[None]
        result: FloatAudio = self._chat._vocos_decode(frames.to(self._chat.device))[0]
        return result

    def reset(self) -> None:
        """Interrupts whatever runs."""
        self.stop(0)

    def warm_up(self) -> None:
        """Speaks two words."""
        self.start(0, Prompt("Warm up."), Sampling(min_steps=8, max_steps=30))
        while self._running is not None:
            self.burst(1)

    def close(self) -> None:
        """Forgets the model."""
        self.stop(0)
        self._chat.unload()
