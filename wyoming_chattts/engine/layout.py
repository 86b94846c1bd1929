"""The files of a ChatTTS checkpoint and the shape of every tensor in them.

One table serves verification, loading and the making of synthetic checkpoints. Numbers are those
of the ChatTTS package's `config/config.py`; tensor names are those of its modules' state dicts.
"""

from dataclasses import dataclass
from pathlib import Path

Shapes = dict[str, tuple[int, ...]]

GPT = "asset/gpt/model.safetensors"
GPT_CONFIG = "asset/gpt/config.json"
EMBED = "asset/Embed.safetensors"
DVAE = "asset/DVAE.safetensors"
DECODER = "asset/Decoder.safetensors"
VOCOS = "asset/Vocos.safetensors"
TOKENIZER = "asset/tokenizer/tokenizer.json"
TOKENIZER_CONFIG = "asset/tokenizer/tokenizer_config.json"
SPECIAL_TOKENS = "asset/tokenizer/special_tokens_map.json"

FILES = (
    GPT_CONFIG,
    GPT,
    EMBED,
    DVAE,
    DECODER,
    VOCOS,
    TOKENIZER,
    TOKENIZER_CONFIG,
    SPECIAL_TOKENS,
)
SOUND_FILES = (GPT_CONFIG, GPT, EMBED, DECODER, VOCOS, TOKENIZER)
"""The files that shape sound when serving; their sums make the model hash."""

N_FFT = 1024
N_MELS = 100
CODEBOOKS = 4
AUDIO_VOCAB = 626
"""625 codes and the end code, which is the last."""
END_CODE = AUDIO_VOCAB - 1

CONTROL_TOKENS = (
    *[
        "[Sasr]",
        "[Pasr]",
        "[Easr]",
        "[Stts]",
        "[Ptts]",
        "[Etts]",
        "[Sbreak]",
        "[Pbreak]",
        "[Ebreak]",
        "[uv_break]",
    ],
    *[
        "[v_break]",
        "[lbreak]",
        "[llbreak]",
        "[undefine]",
        "[laugh]",
        "[spk_emb]",
        "[empty_spk]",
        "[music]",
    ],
    "[pure]",
    *(f"[break_{i}]" for i in range(8)),
    *(f"[laugh_{i}]" for i in range(3)),
    *(f"[oral_{i}]" for i in range(10)),
    *(f"[speed_{i}]" for i in range(10)),
)


@dataclass(frozen=True, slots=True)
class Dims:
    """Sizes of a checkpoint; the defaults are those of the released model."""

    hidden: int = 768
    layers: int = 20
    heads: int = 12
    mlp: int = 3072
    text_vocab: int = 21178
    decoder_hidden: int = 512
    decoder_bottleneck: int = 128
    decoder_layers: int = 12
    dvae_dim: int = 512
    dvae_hidden: int = 256
    dvae_layers: int = 12
    dvae_latent: int = 1024
    vocos_dim: int = 512
    vocos_mlp: int = 1536
    vocos_layers: int = 8


FULL = Dims()
TINY = Dims(
    layers=2,
    mlp=256,
    text_vocab=3000,
    decoder_hidden=64,
    decoder_bottleneck=32,
    decoder_layers=2,
    dvae_dim=64,
    dvae_hidden=32,
    dvae_layers=1,
    dvae_latent=64,
    vocos_dim=64,
    vocos_mlp=128,
    vocos_layers=2,
)
"""Still 768 wide with 12 heads, so that speaker embeddings fit."""


def gpt_shapes(d: Dims) -> Shapes:
    """Llama's tensors; no token embedding, ChatTTS brings its own."""
    shapes: Shapes = {"norm.weight": (d.hidden,)}
    for i in range(d.layers):
        layer = f"layers.{i}."
        for name in ("q", "k", "v", "o"):
            shapes[f"{layer}self_attn.{name}_proj.weight"] = (d.hidden, d.hidden)
        shapes[f"{layer}mlp.gate_proj.weight"] = (d.mlp, d.hidden)
        shapes[f"{layer}mlp.up_proj.weight"] = (d.mlp, d.hidden)
        shapes[f"{layer}mlp.down_proj.weight"] = (d.hidden, d.mlp)
        shapes[f"{layer}input_layernorm.weight"] = (d.hidden,)
        shapes[f"{layer}post_attention_layernorm.weight"] = (d.hidden,)
    return shapes


def embed_shapes(d: Dims) -> Shapes:
    """Text and code embeddings, and the weight-normed heads."""
    shapes: Shapes = {"emb_text.weight": (d.text_vocab, d.hidden)}
    heads = [("head_text", d.text_vocab)]
    for i in range(CODEBOOKS):
        shapes[f"emb_code.{i}.weight"] = (AUDIO_VOCAB, d.hidden)
        heads.append((f"head_code.{i}", AUDIO_VOCAB))
    for head, size in heads:
        shapes[f"{head}.parametrizations.weight.original0"] = (size, 1)
        shapes[f"{head}.parametrizations.weight.original1"] = (size, d.hidden)
    return shapes


def _convnext_shapes(prefix: str, scale: str, dim: int, mlp: int) -> Shapes:
    return {
        f"{prefix}{scale}": (dim,),
        f"{prefix}dwconv.weight": (dim, 1, 7),
        f"{prefix}dwconv.bias": (dim,),
        f"{prefix}norm.weight": (dim,),
        f"{prefix}norm.bias": (dim,),
        f"{prefix}pwconv1.weight": (mlp, dim),
        f"{prefix}pwconv1.bias": (mlp,),
        f"{prefix}pwconv2.weight": (dim, mlp),
        f"{prefix}pwconv2.bias": (dim,),
    }


def _stack_shapes(
    prefix: str, idim: int, odim: int, bottleneck: int, hidden: int, n: int
) -> Shapes:
    shapes: Shapes = {
        f"{prefix}conv_in.0.weight": (bottleneck, idim, 3),
        f"{prefix}conv_in.0.bias": (bottleneck,),
        f"{prefix}conv_in.2.weight": (hidden, bottleneck, 3),
        f"{prefix}conv_in.2.bias": (hidden,),
        f"{prefix}conv_out.weight": (odim, hidden, 1),
    }
    for i in range(n):
        shapes |= _convnext_shapes(f"{prefix}decoder_block.{i}.", "weight", hidden, 4 * hidden)
    return shapes


def decoder_shapes(d: Dims) -> Shapes:
    """The decoder from the GPT's hidden states to mel frames."""
    half = d.hidden // 2
    return {
        "coef": (1, N_MELS, 1),
        "out_conv.weight": (N_MELS, half, 3),
        **_stack_shapes(
            "decoder.", half, half, d.decoder_bottleneck, d.decoder_hidden, d.decoder_layers
        ),
    }


def dvae_shapes(d: Dims) -> Shapes:
    """The DVAE from codes; serving does not use it, enrolling a voice does."""
    shapes: Shapes = {
        "coef": (1, N_MELS, 1),
        "downsample_conv.0.weight": (d.dvae_dim, N_MELS, 3),
        "downsample_conv.0.bias": (d.dvae_dim,),
        "downsample_conv.2.weight": (d.dvae_dim, d.dvae_dim, 4),
        "downsample_conv.2.bias": (d.dvae_dim,),
        "preprocessor_mel.mel_spec.spectrogram.window": (N_FFT,),
        "preprocessor_mel.mel_spec.mel_scale.fb": (N_FFT // 2 + 1, N_MELS),
        "out_conv.weight": (N_MELS, d.dvae_dim, 3),
    }
    shapes |= _stack_shapes(
        "encoder.", d.dvae_dim, d.dvae_latent, d.decoder_bottleneck, d.dvae_hidden, d.dvae_layers
    )
    shapes |= _stack_shapes(
        "decoder.", d.dvae_dim, d.dvae_dim, d.decoder_bottleneck, d.dvae_hidden, d.dvae_layers
    )
    for group in range(2):
        base = f"vq_layer.quantizer.rvqs.{group}."
        half = d.dvae_latent // 2
        shapes[f"{base}project_in.weight"] = (4, half)
        shapes[f"{base}project_in.bias"] = (4,)
        shapes[f"{base}project_out.weight"] = (half, 4)
        shapes[f"{base}project_out.bias"] = (half,)
    return shapes


def vocos_shapes(d: Dims) -> Shapes:
    """The vocoder."""
    dim = d.vocos_dim
    shapes: Shapes = {
        "feature_extractor.mel_spec.spectrogram.window": (N_FFT,),
        "feature_extractor.mel_spec.mel_scale.fb": (N_FFT // 2 + 1, N_MELS),
        "backbone.embed.weight": (dim, N_MELS, 7),
        "backbone.embed.bias": (dim,),
        "backbone.norm.weight": (dim,),
        "backbone.norm.bias": (dim,),
        "backbone.final_layer_norm.weight": (dim,),
        "backbone.final_layer_norm.bias": (dim,),
        "head.out.weight": (N_FFT + 2, dim),
        "head.out.bias": (N_FFT + 2,),
        "head.istft.window": (N_FFT,),
    }
    for i in range(d.vocos_layers):
        shapes |= _convnext_shapes(f"backbone.convnext.{i}.", "gamma", dim, d.vocos_mlp)
    return shapes


def tensor_shapes(d: Dims) -> dict[str, Shapes]:
    """Expected tensors by file."""
    return {
        GPT: gpt_shapes(d),
        EMBED: embed_shapes(d),
        DECODER: decoder_shapes(d),
        DVAE: dvae_shapes(d),
        VOCOS: vocos_shapes(d),
    }


def gpt_config(d: Dims) -> dict[str, object]:
    """What `asset/gpt/config.json` must say for these sizes."""
    return {
        "architectures": ["LlamaModel"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": d.hidden,
        "intermediate_size": d.mlp,
        "num_attention_heads": d.heads,
        "num_key_value_heads": d.heads,
        "num_hidden_layers": d.layers,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "vocab_size": d.text_vocab,
        "attention_bias": False,
        "torch_dtype": "float32",
    }


def present(folder: Path) -> bool:
    """Whether every file of a checkpoint is there."""
    return all((folder / name).is_file() for name in FILES)
