"""Writes checkpoints of random numbers in the layout of the real one, for tests and benchmarks.

What they say is noise, not a voice. Beside `asset/` lies a marker file with the sizes, the sums
and the pace: random weights draw the end code by chance, so where the marker lies the number of
steps of a segment follows from its text.
"""

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from . import layout
from .checkpoint import MARKER, file_sha256, package_resource
from .layout import N_FFT, N_MELS

SIZES = {"tiny": layout.TINY, "full": layout.FULL}


def synthesize_checkpoint(
    folder: Path, size: str, seed: int, log: Callable[[str], None] = lambda _line: None
) -> None:
    """Writes a checkpoint of `size` (`tiny` or `full`) from `seed` into `folder`."""
    dims = SIZES[size]
    generator = torch.Generator().manual_seed(seed)
    for name, shapes in layout.tensor_shapes(dims).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({key: _tensor(key, shape, generator) for key, shape in shapes.items()}, path)
        log(f"wrote {path} ({path.stat().st_size / 1e6:.0f} MB)")
    _write_json(folder / layout.GPT_CONFIG, layout.gpt_config(dims))
    _write_tokenizer(folder, dims.text_vocab)
    sums = {name: file_sha256(folder / name) for name in layout.FILES}
    _write_json(
        folder / MARKER,
        {
            "note": "random numbers: what this checkpoint says is noise, not a voice",
            "size": size,
            "seed": seed,
            "dims": asdict(dims),
            "sha256": sums,
        },
    )


def _tensor(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Random values scaled so that activations, logits and audio stay in a real model's range."""
    if name.endswith("window"):
        return torch.hann_window(N_FFT)
    if name.endswith("mel_scale.fb"):
        return _mel_filters()
    normal = torch.randn(shape, generator=generator)
    if name == "coef":
        return 1.0 + 0.1 * normal.abs()
    if name.endswith("original0"):
        # with rows of unit direction and a normalised hidden state, this is the logits' spread
        return 2.0 + 0.1 * normal.abs()
    if name == "head.out.bias":
        # log magnitude of the spectrum: about -20 dBFS of noise
        bias = 0.1 * normal
        bias[: N_FFT // 2 + 1] -= 0.5
        return bias
    if name.endswith("bias"):
        return 0.02 * normal
    if "norm" in name:
        return 1.0 + 0.05 * normal
    if name.endswith("gamma") or (".decoder_block." in name and len(shape) == 1):
        return 0.2 + 0.02 * normal
    if name.startswith("emb_"):
        return 0.5 * normal
    fan_in = math.prod(shape[1:]) if len(shape) > 1 else shape[0]
    # attention that picks rather than averages, so that what is said shows in what is heard
    gain = 1.0
    if name.startswith("layers."):
        gain = 1.5 if ("q_proj" in name or "k_proj" in name) else 0.7
    return normal * (gain / math.sqrt(fan_in))


def _mel_filters() -> torch.Tensor:
    """Triangular HTK mel filters, `[513, 100]`, 0 to 12 kHz (unused when serving)."""
    bins = torch.linspace(0, 12_000, N_FFT // 2 + 1)
    top = 2595 * math.log10(1 + 12_000 / 700)
    points = 700 * (10 ** (torch.linspace(0, top, N_MELS + 2) / 2595) - 1)
    slopes = points[None, :] - bins[:, None]
    down = -slopes[:, :-2] / (points[1:-1] - points[:-2])
    up = slopes[:, 2:] / (points[2:] - points[1:-1])
    return torch.minimum(down, up).clamp(min=0).contiguous()


def _write_tokenizer(folder: Path, vocab_size: int) -> None:
    """A BERT-style tokenizer: letters, word pieces, common characters, then the control tokens."""
    plain = vocab_size - len(layout.CONTROL_TOKENS)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    ascii_chars = [chr(c) for c in range(0x21, 0x7F) if not chr(c).isupper()]
    words += ascii_chars + [f"##{c}" for c in ascii_chars]
    words += list("，。、！？；：…—“”‘’（）《》")
    table = json.loads(package_resource("res/homophones_map.json").read_text(encoding="utf-8"))
    seen = set(words)
    common = [c for c in dict.fromkeys(table.values()) if c not in seen and "一" <= c <= "鿿"]
    ordered = [*common, *(chr(c) for c in range(0x4E00, 0xA000))]
    for char in ordered:
        if len(words) >= plain:
            break
        if char not in seen:
            seen.add(char)
            words.append(char)
    words += [f"[unused{i}]" for i in range(plain - len(words))]
    tokenizer = Tokenizer(
        models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    bert_tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in bert_tokens])
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in layout.CONTROL_TOKENS]
    )
    path = folder / layout.TOKENIZER
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    names = {
        "unk_token": "[UNK]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    }
    special = {**names, "additional_special_tokens": list(layout.CONTROL_TOKENS)}
    _write_json(folder / layout.SPECIAL_TOKENS, special)
    _write_json(
        folder / layout.TOKENIZER_CONFIG,
        {
            **special,
            "do_lower_case": True,
            "tokenize_chinese_chars": True,
            "strip_accents": None,
            "clean_up_tokenization_spaces": True,
            "model_max_length": 1_000_000_000,
            "tokenizer_class": "BertTokenizer",
        },
    )


def _write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")
