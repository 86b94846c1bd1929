"""The compiled decoder and the fused kernels: the same results as plain torch, or plain torch."""

import logging
from pathlib import Path

import pytest
import torch

from wyoming_chattts.config import EngineConfig, SamplingConfig, StreamConfig
from wyoming_chattts.engine import fused, layout, native
from wyoming_chattts.engine.base import Prompt, Sampling
from wyoming_chattts.engine.checkpoint import open_checkpoint
from wyoming_chattts.engine.fast import FastEngine
from wyoming_chattts.engine.gpt import Gpt
from wyoming_chattts.engine.gpt_native import NativeGpt, fits
from wyoming_chattts.engine.layout import AUDIO_VOCAB, TINY, Dims
from wyoming_chattts.engine.quantize import quantized_rows
from wyoming_chattts.engine.sampling import pick
from wyoming_chattts.engine.weights import Tensors, read_tensors

CONTEXT = 256


@pytest.fixture(scope="module")
def library() -> object:
    library = native.load()
    if library is None:
        pytest.skip("no C++ compiler here")
    return library


@pytest.fixture(scope="module")
def tensors(tiny_dir: Path) -> Tensors:
    return read_tensors(open_checkpoint(tiny_dir, verify=False).file(layout.GPT))


def make(library: object, tensors: Tensors, slots: int = 4) -> NativeGpt:
    return NativeGpt(library, tensors, TINY, slots=slots, context=CONTEXT)  # type: ignore[arg-type]


def inputs(rows: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, TINY.hidden, generator=torch.Generator().manual_seed(seed))


def run(gpt: Gpt | NativeGpt, prompt: torch.Tensor, steps: list[torch.Tensor]) -> torch.Tensor:
    """Hidden states of a prompt in slot 0 and of steps after it: `[tokens + steps, hidden]`."""
    with torch.inference_mode():
        made = [gpt.prefill(prompt.clone(), 0)]
        for i, x in enumerate(steps):
            position = torch.tensor([prompt.shape[0] + i])
            made.append(gpt.step(x, position, CONTEXT))
    return torch.cat(made)


@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 40, 200])
def test_computes_what_plain_torch_does(library: object, tensors: Tensors, tokens: int) -> None:
    """Over weights rounded to int8 beforehand, so that only the inputs' rounding differs."""
    rounded = {
        name: (quantized_rows(t)[0] * quantized_rows(t)[1][:, None] if t.dim() == 2 else t)
        for name, t in tensors.items()
    }
    plain = Gpt(
        rounded, TINY, slots=4, context=CONTEXT, precision="fp32", device=torch.device("cpu")
    )
    prompt, steps = inputs(tokens, 1), [inputs(1, 10 + i) for i in range(40)]
    expected = run(plain, prompt, steps)
    found = run(make(library, tensors), prompt, steps)
    error = (found - expected).norm(dim=1) / expected.norm(dim=1)
    assert error.max() < 0.02
    assert error.mean() > 0


def test_a_row_does_not_depend_on_its_neighbours(library: object, tensors: Tensors) -> None:
    """To the last bit, in whichever slot and with however many rows."""
    alone, shared = make(library, tensors), make(library, tensors, slots=7)
    prompt, steps = inputs(21, 1), [inputs(1, 10 + i) for i in range(8)]
    expected = run(alone, prompt, steps)[21:]
    for slot in (0, 2, 6):
        for other in range(7):
            shared.prefill((inputs(5 + 9 * other, other) if other != slot else prompt) * 1.0, other)
        for i, x in enumerate(steps):
            for rows in range(slot + 1, 8):
                together = inputs(rows, 99 + rows) * 30
                together[slot] = x[0]
                positions = torch.full((rows,), 100)
                positions[slot] = 21 + i
                found = shared.step(together, positions, CONTEXT)[slot]
                assert torch.equal(found, expected[i])


def test_not_a_number_stays_one(library: object, tensors: Tensors) -> None:
    gpt = make(library, tensors)
    prompt = inputs(6, 1)
    prompt[2, 5] = torch.nan
    found = gpt.prefill(prompt, 0)
    assert found[2].isnan().all()


def test_is_used_for_int8_on_a_cpu_and_speaks(library: object, tiny_dir: Path) -> None:
    engine = engine_of(tiny_dir)
    assert isinstance(engine._gpt, NativeGpt)
    assert isinstance(engine_of(tiny_dir, compiled=False)._gpt, Gpt)
    assert isinstance(engine_of(tiny_dir, precision="fp32")._gpt, Gpt)
    assert engine.info.identity != engine_of(tiny_dir, compiled=False).info.identity
    engine.start(0, Prompt("Hello.", None), Sampling())
    assert any(output.end for _ in range(40) for output in engine.burst(8))


def engine_of(folder: Path, **settings: object) -> FastEngine:
    return FastEngine(
        open_checkpoint(folder, verify=False),
        EngineConfig.model_validate({"device": "cpu", "slots": 2} | settings),
        SamplingConfig(),
        StreamConfig(),
    )


def test_sizes_that_it_is_not_made_for() -> None:
    assert fits(Dims()) and fits(TINY)
    assert not fits(Dims(mlp=100)) and not fits(Dims(hidden=768, heads=96))


@pytest.mark.parametrize("compiler", ["false", "no-such-compiler", "echo"])
def test_without_a_compiler_plain_torch_speaks(
    compiler: str,
    tiny_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", compiler)
    native.load.cache_clear()
    try:
        for _ in range(2):
            assert isinstance(engine_of(tiny_dir)._gpt, Gpt)
    finally:
        native.load.cache_clear()
    assert caplog.text.count("no compiled decoder") == 1
    assert not [file for file in tmp_path.rglob("*.so") if file.stat().st_size]


def test_is_built_once_and_again_if_damaged(
    library: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native.load.cache_clear()
    try:
        assert native.load() is not None
        (file,) = tmp_path.rglob("*.so")
        built = file.stat().st_mtime_ns
        native.load.cache_clear()
        assert native.load() is not None and file.stat().st_mtime_ns == built
        native.load.cache_clear()
        file.unlink()
        file.write_bytes(b"not a library")
        assert native.load() is not None
    finally:
        native.load.cache_clear()


def test_a_cache_folder_that_cannot_be_made(
    library: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    native.load.cache_clear()
    try:
        assert native.load() is not None
    finally:
        native.load.cache_clear()


@pytest.mark.slow
def test_fused_kernels_compute_what_the_plain_ones_do(
    library: object, caplog: pytest.LogCaptureFixture
) -> None:
    """Compiled for the CPU here; the same functions are compiled for CUDA."""
    plain, compiled = fused.Kernels(), fused.Kernels.compiled()
    seeded = torch.Generator().manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=seeded)

    with torch.inference_mode():
        for rows in (1, 2, 4, 8, 16):
            for dtype in (torch.float32, torch.float16):
                x, delta, weight = random(rows, 768), random(rows, 768).to(dtype), random(768)
                for a, b in zip(
                    plain.add_norm(x, delta, weight),
                    compiled.add_norm(x, delta, weight),
                    strict=True,
                ):
                    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
            qkv, rope = random(rows, 3 * 768), random(rows, 32, 2)
            caches = [torch.zeros(rows * 16, 2 * 768) for _ in range(2)]
            where = torch.arange(rows) * 16 + 3
            torch.testing.assert_close(
                plain.rotate(qkv, rope, caches[0], where),
                compiled.rotate(qkv, rope, caches[1], where),
            )
            torch.testing.assert_close(caches[0], caches[1])
            assert caches[1].count_nonzero() == rows * 2 * 768
            gate_up = random(rows, 512)
            torch.testing.assert_close(plain.swiglu(gate_up), compiled.swiglu(gate_up))
            arguments = (
                random(rows, 4 * AUDIO_VOCAB),
                torch.randint(0, AUDIO_VOCAB + 1, (rows, 4, 16), generator=seeded),
                torch.arange(rows) % 2 == 0,
                torch.rand((rows, 4, AUDIO_VOCAB), generator=seeded) + 0.01,
                torch.full((rows, 1, 1), 0.3),
                torch.full((rows, 1, 1), 1.05),
                torch.full((rows, 1, 1), 0.7),
                torch.full((rows, 1, 1), 20),
                20,
            )
            assert torch.equal(pick(*arguments), compiled.pick(*arguments))
    assert "no fused kernels" not in caplog.text


def test_a_compiler_that_fails_leaves_plain_torch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError("Cannot find a working triton installation.\nLong advice.")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: broken)
    kernels = fused.Kernels.compiled()
    gate_up = torch.randn(2, 512)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert torch.equal(kernels.swiglu(gate_up), fused.swiglu(gate_up))
        x = torch.randn(2, 768)
        kernels.add_norm(x, x, torch.ones(768))
    assert caplog.text.count("no fused kernels (Cannot find a working triton installation.)") == 1
    assert kernels.rotate is fused.rotate
