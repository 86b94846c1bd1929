"""The fast engine: slots, seeds, ends, precision, the refine pass."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from wyoming_chattts.config import EngineConfig, SamplingConfig, StreamConfig
from wyoming_chattts.engine import speaker
from wyoming_chattts.engine.base import End, FloatAudio, Prompt, Sampling
from wyoming_chattts.engine.checkpoint import open_checkpoint
from wyoming_chattts.engine.fast import EMPTY_RETRIES, FastEngine
from wyoming_chattts.engine.graphs import bucket_rows
from wyoming_chattts.engine.layout import END_CODE
from wyoming_chattts.engine.quantize import int8_weight_only, make_linear, resolve
from wyoming_chattts.errors import ConfigError

VOICE = speaker.from_seed(2)
PROMPTS = [
    Prompt("Good morning, the kitchen light is on.", VOICE),
    Prompt("早上好，今天天气不错。", speaker.from_seed(3)),
    Prompt("One.", None),
    Prompt("A somewhat longer sentence that goes on beside the others.", VOICE),
]


def make(folder: Path, **engine: object) -> FastEngine:
    return FastEngine(
        open_checkpoint(folder),
        EngineConfig.model_validate({"device": "cpu", "precision": "fp32", "slots": 4} | engine),
        SamplingConfig(max_steps=256),
        StreamConfig(),
    )


@pytest.fixture(scope="module")
def engine(tiny_dir: Path) -> FastEngine:
    return make(tiny_dir)


def drain(engine: FastEngine, burst: int = 8) -> dict[int, tuple[FloatAudio, End, int]]:
    """Runs all slots to their ends: audio, end and steps by slot."""
    parts: dict[int, list[FloatAudio]] = {}
    done: dict[int, tuple[FloatAudio, End, int]] = {}
    while engine._slots:
        for output in engine.burst(burst):
            parts.setdefault(output.slot, []).append(output.audio)
            if output.end is not None:
                audio = np.concatenate(parts[output.slot])
                done[output.slot] = (audio, output.end, output.steps)
    return done


def codes_of(engine: FastEngine, slot: int, steps: int) -> list[list[int]]:
    codes: list[list[int]] = engine._decode.codes[slot, :steps].tolist()
    return codes


def speak(engine: FastEngine, prompt: Prompt, seed: int = 5, burst: int = 8) -> list[list[int]]:
    engine.start(0, prompt, Sampling(seed=seed))
    steps = drain(engine, burst)[0][2]
    return codes_of(engine, 0, steps)


def test_a_segment_has_all_its_samples(engine: FastEngine) -> None:
    engine.start(1, PROMPTS[0], Sampling(seed=1))
    audio, end, steps = drain(engine)[1]
    assert end is End.COMPLETE
    assert steps == 3 * sum(c.isalpha() for c in PROMPTS[0].text)
    assert audio.shape == ((2 * steps - 1) * 256,)
    assert 0.005 < np.sqrt((audio**2).mean()) < 0.5


def test_codes_do_not_depend_on_neighbours_slots_or_bursts(engine: FastEngine) -> None:
    alone = [speak(engine, prompt) for prompt in PROMPTS]
    assert len({str(codes[:4]) for codes in alone}) == 4
    for burst in (1, 5, 32):
        assert speak(engine, PROMPTS[0], burst=burst) == alone[0]
    # all together, joining one after another, in other slots than before
    order = [2, 0, 3, 1]
    for slot, prompt in zip(order, PROMPTS, strict=True):
        engine.start(slot, prompt, Sampling(seed=5))
        engine.burst(3)
    ends = {slot: len(codes) for slot, codes in zip(order, alone, strict=True)}
    drain(engine, 7)
    for slot, codes in zip(order, alone, strict=True):
        assert codes_of(engine, slot, ends[slot]) == codes


def test_a_seed_decides(engine: FastEngine) -> None:
    assert speak(engine, PROMPTS[0], seed=1) == speak(engine, PROMPTS[0], seed=1)
    assert speak(engine, PROMPTS[0], seed=1) != speak(engine, PROMPTS[0], seed=2)


@pytest.mark.parametrize("change", ["speaker", "speed", "text"])
def test_everything_in_the_prompt_matters(engine: FastEngine, change: str) -> None:
    prompt = PROMPTS[0]
    other = {
        "speaker": replace(prompt, speaker=speaker.from_seed(99)),
        "speed": replace(prompt, style=replace(prompt.style, speed=2)),
        "text": replace(prompt, text="Good evening, the kitchen light is on."),
    }[change]
    assert speak(engine, prompt) != speak(engine, other)


def test_a_stopped_slot_is_free_and_others_go_on(engine: FastEngine) -> None:
    alone = speak(engine, PROMPTS[0])
    engine.start(0, PROMPTS[1], Sampling(seed=5))
    engine.start(1, PROMPTS[0], Sampling(seed=5))
    engine.burst(8)
    engine.stop(0)
    engine.stop(0)
    engine.start(0, PROMPTS[2], Sampling(seed=5))
    assert sorted(drain(engine)) == [0, 1]
    assert codes_of(engine, 1, len(alone)) == alone


def test_a_slot_is_taken_once(engine: FastEngine) -> None:
    engine.start(0, PROMPTS[0], Sampling())
    with pytest.raises(ValueError, match="not free"):
        engine.start(0, PROMPTS[0], Sampling())
    with pytest.raises(ValueError, match="not free"):
        engine.start(9, PROMPTS[0], Sampling())
    engine.reset()
    assert engine.burst(8) == []


def _unpaced(engine: FastEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = replace(engine._checkpoint, synthetic=False)
    monkeypatch.setattr(engine, "_checkpoint", checkpoint)


def test_a_segment_without_an_end_is_cut_at_the_limit(
    engine: FastEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    _unpaced(engine, monkeypatch)
    engine.start(0, PROMPTS[0], Sampling(min_steps=40, max_steps=40))
    audio, end, steps = drain(engine)[0]
    assert (end, steps, audio.size) == (End.LIMIT, 40, 79 * 256)


def test_the_end_code_ends_a_segment(engine: FastEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end code's row of the first head is raised, so that it is drawn as soon as it may be."""
    _unpaced(engine, monkeypatch)
    logits = torch.nn.functional.linear

    def raised(x: torch.Tensor, w: torch.Tensor, *rest: object) -> torch.Tensor:
        out = logits(x, w, *rest)  # type: ignore[arg-type]
        if w is engine._decode._heads:
            out[:, END_CODE] += 1000
        return out

    monkeypatch.setattr("wyoming_chattts.engine.decode.F.linear", raised)
    engine.start(0, PROMPTS[0], Sampling(min_steps=21, max_steps=100))
    _, end, steps = drain(engine)[0]
    assert (end, steps) == (End.COMPLETE, 21)
    # at step 0 it is an empty result, tried again with other noise and then given up
    begun = 0
    begin = engine._decode.begin

    def counted(*arguments: object) -> int:
        nonlocal begun
        begun += 1
        return begin(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(engine._decode, "begin", counted)
    engine.start(0, PROMPTS[0], Sampling())
    audio, end, steps = drain(engine)[0]
    assert (end, steps, audio.size, begun) == (End.EMPTY, 0, 0, EMPTY_RETRIES)


def test_a_prompt_longer_than_the_context_is_cut(
    tiny_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make(tiny_dir, context=256, slots=1)
    engine.start(0, Prompt("word " * 400, VOICE), Sampling())
    _, end, steps = drain(engine, 32)[0]
    assert end is End.COMPLETE and steps == 64
    assert "is cut to 192" in caplog.text


@pytest.mark.parametrize("precision", ["bf16", "fp16", "int8"])
def test_lower_precision_stays_near_fp32(tiny_dir: Path, precision: str) -> None:
    half, full = make(tiny_dir, precision=precision), make(tiny_dir)
    assert half.info.identity != full.info.identity
    with torch.inference_mode():
        x = full.embed_prompt(PROMPTS[0])
        a, b = half._gpt.prefill(x.clone(), 0), full._gpt.prefill(x.clone(), 0)
    assert torch.nn.functional.cosine_similarity(a, b).min() > 0.999
    assert half.info.precision == precision
    assert not torch.equal(a, b)
    half.start(0, PROMPTS[0], Sampling())
    assert drain(half)[0][1] is End.COMPLETE


def test_in_int8_a_row_does_not_depend_on_its_neighbours(tiny_dir: Path) -> None:
    """To the last bit: each row has a scale of its own."""
    weight = torch.randn(96, 64, generator=torch.Generator().manual_seed(1))
    linear = make_linear(weight, "int8", torch.device("cpu"))
    rows = torch.randn(5, 64, generator=torch.Generator().manual_seed(2)) * torch.tensor(
        [[1.0], [100.0], [0.01], [0.0], [7.0]]
    )
    together = linear(rows).clone()
    for i in range(5):
        assert torch.equal(linear(rows[i : i + 1])[0], together[i])
    exact = rows @ weight.t()
    error = (together - exact).norm(dim=1) / exact.norm(dim=1).clamp(min=1e-9)
    assert error.max() < 0.02
    engine = make(tiny_dir, precision="int8")
    alone = speak(engine, PROMPTS[0])
    for slot, prompt in ((0, PROMPTS[0]), (1, PROMPTS[1]), (2, PROMPTS[3])):
        engine.start(slot, prompt, Sampling(seed=5))
    drain(engine)
    assert codes_of(engine, 0, len(alone)) == alone


def test_int8_weights_alone_stay_near_fp32_and_rows_apart() -> None:
    """The kernel that CUDA's int8 uses, here on the CPU."""
    weight = torch.randn(96, 64, generator=torch.Generator().manual_seed(1))
    linear = int8_weight_only(weight, torch.device("cpu"))
    rows = torch.randn(5, 64, generator=torch.Generator().manual_seed(2))
    together, exact = linear(rows).float(), rows @ weight.t()
    assert (together - exact).norm() < 0.02 * exact.norm()
    for i in range(5):
        assert torch.equal(linear(rows[i : i + 1])[0].float(), together[i])


def test_auto_is_int8_on_a_cpu() -> None:
    assert resolve("auto", torch.device("cpu")) == "int8"
    assert resolve("auto", torch.device("cuda")) == "fp16"
    assert resolve("bf16", torch.device("cpu")) == "bf16"


def test_refining_changes_the_prompt_and_harms_no_neighbour(engine: FastEngine) -> None:
    alone = speak(engine, PROMPTS[0])
    engine.start(0, PROMPTS[0], Sampling(seed=5))
    engine.start(1, replace(PROMPTS[1], refine=True), Sampling(seed=5))
    refined: list[str] = []
    while engine._slots:
        engine.burst(4)
        if 1 in engine._slots and engine._slots[1].refine is None:
            refined.append(engine._slots[1].prompt.text)
    assert codes_of(engine, 0, len(alone)) == alone
    assert refined and refined[0] != PROMPTS[1].text


def test_a_step_can_be_captured(engine: FastEngine) -> None:
    """No value is fetched from the device and no shape depends on data: the step runs on tensors
    that have shapes but no data."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    decode = engine._decode
    for rows in (1, 2, 4):
        with FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode():
            decode.step(rows, 128)
        with (
            pytest.raises(Exception, match="local_scalar_dense"),
            FakeTensorMode(allow_non_fake_inputs=True) as mode,
            torch.inference_mode(),
        ):
            # the check itself: this would wait for the device
            bool(mode.from_tensor(decode.done).all())


def test_a_snapshot_undoes_steps(engine: FastEngine) -> None:
    alone = speak(engine, PROMPTS[0])
    engine.start(0, PROMPTS[0], Sampling(seed=5))
    engine.burst(8)
    kept = engine._decode.snapshot()
    with torch.inference_mode():
        engine._decode.step(1, 128)
        engine._decode.step(1, 128)
        engine._decode.restore(kept)
    drain(engine)
    assert codes_of(engine, 0, len(alone)) == alone


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_graphs_give_the_same_codes_as_stepping(tiny_dir: Path) -> None:
    with_graphs = make(tiny_dir, device="cuda", cuda_graphs=True)
    without = make(tiny_dir, device="cuda", cuda_graphs=False)
    with_graphs.warm_up()
    assert with_graphs._runner.captured > 0
    assert speak(with_graphs, PROMPTS[0]) == speak(without, PROMPTS[0])


@pytest.mark.parametrize(("rows", "bucket"), [(1, 1), (2, 2), (3, 4), (5, 6), (6, 6)])
def test_rows_come_in_buckets(rows: int, bucket: int) -> None:
    assert bucket_rows(rows, 6) == bucket


def test_warm_up_leaves_all_slots_free(engine: FastEngine) -> None:
    engine.warm_up()
    assert not engine._slots


@pytest.mark.parametrize("device", ["nonsense", "meta", "cuda:99"])
def test_a_bad_device_is_named(tiny_dir: Path, device: str) -> None:
    with pytest.raises(ConfigError, match=r"engine\.device"):
        make(tiny_dir, device=device)
