"""The fast engine against the stock `ChatTTS` package on the same synthetic checkpoints."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from wyoming_chattts.config import EngineConfig, SamplingConfig, StreamConfig
from wyoming_chattts.engine import speaker
from wyoming_chattts.engine.base import Prompt, Recording, Sampling
from wyoming_chattts.engine.checkpoint import open_checkpoint
from wyoming_chattts.engine.fast import FastEngine
from wyoming_chattts.engine.layout import AUDIO_VOCAB, CODEBOOKS
from wyoming_chattts.engine.prompt import code_prompt
from wyoming_chattts.engine.sampling import candidates

from .oracle import load_oracle

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]

TEXTS = [
    "Good morning, the kitchen light is on.",
    "早上好，今天天气不错。[uv_break]出门记得带伞。",
    "Set 客厅 to twenty two degrees [laugh] please",
]
SPEAKER = speaker.from_seed(11)


class Pair:
    """Both implementations over one checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.chat: Any = load_oracle(folder)
        self.engine = FastEngine(
            open_checkpoint(folder),
            EngineConfig(device="cpu", precision="fp32", slots=2),
            SamplingConfig(max_steps=256),
            StreamConfig(),
        )

    def stock_ids(self, prompt: Prompt) -> Any:
        spk = speaker.to_string(prompt.speaker) if prompt.speaker is not None else None
        recording = prompt.recording
        texts = self.chat.speaker.decorate_code_prompts(
            [prompt.text],
            f"[speed_{prompt.style.speed}]",
            recording.transcript if recording else None,
            spk,
        )
        codes = None
        if recording is not None:
            codes = self.chat.speaker.decode_prompt(speaker.codes_to_string(recording.codes))
        return self.chat.tokenizer.encode(texts, CODEBOOKS, prompt=codes, device="cpu")

    def stock_embedded(self, prompt: Prompt) -> torch.Tensor:
        ids, _, mask = self.stock_ids(prompt)
        embedded = self.chat.embed(ids, mask)
        if prompt.speaker is not None:
            self.chat.speaker.apply(
                embedded,
                speaker.to_string(prompt.speaker),
                ids,
                self.chat.tokenizer.spk_emb_ids,
                torch.device("cpu"),
            )
        return embedded


@pytest.fixture(scope="module", params=["tiny", "full"])
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(request.getfixturevalue(f"{request.param}_dir"))


@pytest.mark.parametrize("text", TEXTS)
def test_prompt_ids_are_equal(pair: Pair, text: str) -> None:
    prompt = Prompt(text, SPEAKER)
    stock = pair.stock_ids(prompt)[0][0, :, 0].tolist()
    assert pair.engine._tokenizer.encode(code_prompt(prompt)) == stock
    assert len(stock) > 8


def test_decoded_text_is_equal(pair: Pair) -> None:
    ids = pair.engine._tokenizer.encode("[Sbreak]good morning[uv_break]你好[laugh][Pbreak]")
    assert pair.engine._tokenizer.decode(ids) == pair.chat.tokenizer.decode([ids])[0]


@pytest.mark.parametrize("embedding", [None, SPEAKER])
def test_prompt_embeddings_are_equal(pair: Pair, embedding: bytes | None) -> None:
    prompt = Prompt(TEXTS[0], embedding)
    with torch.inference_mode():
        ours = pair.engine.embed_prompt(prompt)
        stock = pair.stock_embedded(prompt)[0]
    assert torch.equal(ours, stock)


def test_prompt_embeddings_with_a_recording_are_equal(pair: Pair) -> None:
    generator = torch.Generator().manual_seed(4)
    codes = torch.randint(0, AUDIO_VOCAB - 1, (CODEBOOKS, 90), generator=generator)
    packed = codes.to(torch.int16).numpy().tobytes()
    prompt = Prompt(TEXTS[0], recording=Recording(packed, "what was said"))
    with torch.inference_mode():
        ours = pair.engine.embed_prompt(prompt)
        stock = pair.stock_embedded(prompt)[0]
    assert ours.shape[0] > 90
    assert torch.equal(ours, stock)


def test_hidden_states_and_logits_agree_over_prefill_and_64_steps(pair: Pair) -> None:
    """Teacher forcing: both are fed the same random codes."""
    prompt = Prompt(TEXTS[2], SPEAKER)
    generator = torch.Generator().manual_seed(3)
    codes = torch.randint(0, AUDIO_VOCAB - 1, (64, CODEBOOKS), generator=generator)
    gpt, decode = pair.engine._gpt, pair.engine._decode
    with torch.inference_mode():
        embedded = pair.stock_embedded(prompt)
        outputs = pair.chat.gpt.gpt(inputs_embeds=embedded, use_cache=True)
        stock = [outputs.last_hidden_state[0, -1]]
        ours = [gpt.prefill(embedded[0].clone(), 1)[-1]]
        tokens = embedded.shape[1]
        for i, code in enumerate(codes):
            x = sum(pair.chat.embed.emb_code[c](code[c]) for c in range(CODEBOOKS))
            outputs = pair.chat.gpt.gpt(
                inputs_embeds=x[None, None], past_key_values=outputs.past_key_values, use_cache=True
            )
            stock.append(outputs.last_hidden_state[0, -1])
            rows = F.embedding(code + decode._offsets, decode._embed).sum(0).expand(2, -1)
            position = torch.tensor([gpt.context - 1, tokens + i])
            ours.append(gpt.step(rows.contiguous(), position, 256)[1])
        hidden, expected = torch.stack(ours), torch.stack(stock)
        logits = F.linear(hidden, decode._heads).view(-1, CODEBOOKS, AUDIO_VOCAB)
        wanted = torch.stack([head(expected) for head in pair.chat.embed.head_code], dim=1)
    assert (hidden - expected).abs().max() < 1e-4
    assert (logits - wanted).abs().max() < 1e-4
    assert expected.std() > 0.1


def test_greedy_codes_are_equal_to_the_first_near_tie(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 steps of the whole stock `generate`, its draw replaced by the best score."""
    margins: list[float] = []

    def best(scores: torch.Tensor, num_samples: int, generator: object = None) -> torch.Tensor:
        top = scores.log().topk(2).values
        margins.append(float((top[:, 0] - top[:, 1]).min()))
        return scores.argmax(dim=-1, keepdim=True)

    monkeypatch.setattr(torch, "multinomial", best)
    prompt = Prompt(TEXTS[0], SPEAKER)
    ids, mask, _ = pair.stock_ids(prompt)
    processors = [*_stock_processors()]
    result = next(
        pair.chat.gpt.generate(
            pair.stock_embedded(prompt),
            ids,
            torch.full((CODEBOOKS,), 0.3),
            AUDIO_VOCAB - 1,
            mask,
            max_new_token=200,
            min_new_token=200,
            logits_processors=processors,
            return_hidden=True,
            show_tqdm=False,
        )
    )
    engine = pair.engine
    with torch.inference_mode():
        engine._checkpoint, kept = _unpaced(engine), engine._checkpoint
        engine.start(0, prompt, Sampling(min_steps=200, max_steps=200, greedy=True))
        while engine._slots:
            engine.burst(8)
        engine._checkpoint = kept
    ours = engine._decode.codes[0, :200]
    stock = result.ids[0]
    # the penalty and temperature scale margins up; a tie is judged on the processed scores
    tie = next((i for i, margin in enumerate(margins) if margin < 1e-3), 200)
    assert tie > 20
    assert torch.equal(ours[:tie], stock[:tie])
    hidden = engine._decode.hidden[0, :tie]
    assert (hidden - result.hiddens[0][:tie]).abs().max() < 1e-3


def _unpaced(engine: FastEngine) -> Any:
    from dataclasses import replace

    return replace(engine._checkpoint, synthetic=False)


def _stock_processors() -> Any:
    from ChatTTS.model import gen_logits

    warpers, processors = gen_logits(AUDIO_VOCAB - 1, 0.7, 20, 1.05)
    return [*processors, *warpers]


def test_logits_processors_are_equal_on_random_inputs() -> None:
    generator = torch.Generator().manual_seed(5)
    processors = _stock_processors()
    for trial in range(50):
        spread = 0.2 + trial / 10
        logits = torch.randn((CODEBOOKS, AUDIO_VOCAB), generator=generator) * spread
        drawn = torch.randint(0, 40, (CODEBOOKS, trial % 24), generator=generator)
        scores = logits / 0.3
        for processor in processors:
            scores = processor(drawn, scores)
        expected = scores.softmax(dim=-1)
        counts = F.one_hot(drawn[:, -16:], AUDIO_VOCAB).sum(1)
        one = torch.ones((1, 1))
        kept, ids = candidates(
            logits, counts, one * 0.3, one * 1.05, one * 0.7, (one * 20).long(), 20
        )
        ours = torch.zeros_like(logits).scatter_(1, ids, kept.softmax(dim=-1))
        torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("steps", [1, 2, 60, 150])
def test_waveform_is_equal(pair: Pair, steps: int) -> None:
    generator = torch.Generator().manual_seed(steps)
    hidden = torch.randn((steps, 768), generator=generator)
    stock = pair.chat._decode_to_wavs([hidden.clone()], True)[0]
    with torch.inference_mode():
        ours = pair.engine._codec.decode(hidden).numpy()
    assert ours.shape == stock.shape == ((2 * steps - 1) * 256,)
    assert np.abs(ours - stock).max() < 1e-4
    assert np.abs(stock).max() > 0.01


def test_speaker_strings_decode_equal(pair: Pair) -> None:
    torch.manual_seed(42)
    text = pair.chat.sample_random_speaker()
    assert speaker.from_string(text) == pair.chat.speaker._decode(text).astype("<f2").tobytes()
    # a seed is the voice that the package draws on the CPU after torch.manual_seed
    assert speaker.from_seed(42) == speaker.from_string(text)
    assert speaker.to_string(speaker.from_string(text)) == text
