"""ChatTTS's GPT: a Llama decoder with a preallocated KV cache for a fixed number of slots.

Activations and norms are float32; the linear layers have the precision that was chosen. Query,
key and value are one product, gate and up another. The rows of the query and key weights are
reordered at load so that rotary pairs lie side by side and the rotation is one complex
multiplication in place; scores do not depend on that order. Runs on the inference thread.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from .layout import Dims
from .quantize import Linear, cache_dtype, make_linear
from .weights import Tensors

ROPE_BASE = 10_000.0
RMS_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: torch.Tensor
    qkv: Linear
    out: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class Gpt:
    """The transformer without embeddings and heads.

    Holds `kv`: `[layers, slots, context, 2, heads, head_dim]`.
    """

    def __init__(
        self,
        tensors: Tensors,
        dims: Dims,
        *,
        slots: int,
        context: int,
        precision: str,
        device: torch.device,
    ) -> None:
        self.slots = slots
        self.context = context
        self.hidden = dims.hidden
        self.heads = dims.heads
        self.head_dim = dims.hidden // dims.heads
        self.device = device
        self._layers = [self._layer(tensors, f"layers.{i}.", precision) for i in range(dims.layers)]
        self._norm = tensors["norm.weight"].to(device)
        self.kv_dtype = cache_dtype(precision, device)
        self.kv = torch.zeros(
            (dims.layers, slots, context, 2, self.heads, self.head_dim),
            dtype=self.kv_dtype,
            device=device,
        )
        self._kv_rows = self.kv.view(dims.layers, slots * context, 2 * dims.hidden)
        self._rope = _rotations(context, self.head_dim).to(device)
        self._positions = torch.arange(context, device=device)
        self._row_offsets = torch.arange(slots, device=device) * context

    def _layer(self, tensors: Tensors, name: str, precision: str) -> _Layer:
        def weight(part: str) -> torch.Tensor:
            return tensors[f"{name}{part}.weight"]

        pairs = _interleave(self.heads, self.head_dim)
        qkv = torch.cat(
            [
                weight("self_attn.q_proj")[pairs],
                weight("self_attn.k_proj")[pairs],
                weight("self_attn.v_proj"),
            ]
        )
        gate_up = torch.cat([weight("mlp.gate_proj"), weight("mlp.up_proj")])
        return _Layer(
            attention_norm=weight("input_layernorm").to(self.device),
            qkv=make_linear(qkv, precision, self.device),
            out=make_linear(weight("self_attn.o_proj"), precision, self.device),
            mlp_norm=weight("post_attention_layernorm").to(self.device),
            gate_up=make_linear(gate_up, precision, self.device),
            down=make_linear(weight("mlp.down_proj"), precision, self.device),
        )

    def prefill(self, x: torch.Tensor, slot: int) -> torch.Tensor:
        """Hidden states `[tokens, hidden]` of a prompt's embeddings; fills the slot's cache."""
        tokens = x.shape[0]
        where = self._positions[:tokens] + slot * self.context
        rope = self._rope[:tokens, None]
        for i, layer in enumerate(self._layers):
            qkv = self._project(i, layer, x, rope, where)
            q = qkv[:, : self.hidden].view(1, tokens, self.heads, self.head_dim)
            k, v = self.kv[i, slot : slot + 1, :tokens].unbind(2)
            attended = F.scaled_dot_product_attention(
                q.transpose(1, 2).to(self.kv_dtype),
                k.transpose(1, 2),
                v.transpose(1, 2),
                is_causal=True,
            )
            x = self._feed(layer, x, attended.transpose(1, 2).reshape(tokens, self.hidden))
        return F.rms_norm(x, (self.hidden,), self._norm, RMS_EPS)

    def step(self, x: torch.Tensor, positions: torch.Tensor, context: int) -> torch.Tensor:
        """Hidden states `[rows, hidden]` of one token per slot, for slots `0..rows`.

        `positions` is `[rows]` int64; `context` bounds the positions that are looked at
        (`positions.max() < context`). No host sync, no shape that depends on data.
        """
        rows = x.shape[0]
        where = self._row_offsets[:rows] + positions
        rope = self._rope[positions, None]
        mask = (self._positions[:context] <= positions[:, None])[:, None, None, :]
        for i, layer in enumerate(self._layers):
            qkv = self._project(i, layer, x, rope, where)
            q = qkv[:, : self.hidden].view(rows, self.heads, 1, self.head_dim)
            k, v = self.kv[i, :rows, :context].unbind(2)
            attended = F.scaled_dot_product_attention(
                q.to(self.kv_dtype), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask
            )
            x = self._feed(layer, x, attended.reshape(rows, self.hidden))
        return F.rms_norm(x, (self.hidden,), self._norm, RMS_EPS)

    def _project(
        self, i: int, layer: _Layer, x: torch.Tensor, rope: torch.Tensor, where: torch.Tensor
    ) -> torch.Tensor:
        """Query, key and value `[tokens, 3*hidden]`, rotated; key and value go to the cache."""
        normed = F.rms_norm(x, (self.hidden,), layer.attention_norm, RMS_EPS)
        qkv = layer.qkv(normed).float()
        pairs = qkv[:, : 2 * self.hidden].unflatten(1, (2 * self.heads, self.head_dim // 2, 2))
        torch.view_as_complex(pairs).mul_(rope)
        self._kv_rows[i].index_copy_(0, where, qkv[:, self.hidden :].to(self.kv_dtype))
        return qkv

    def _feed(self, layer: _Layer, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        # half precision is added to the float32 stream as it is, which saves a kernel for a cast
        x = x + layer.out(attended)
        gate, up = layer.gate_up(F.rms_norm(x, (self.hidden,), layer.mlp_norm, RMS_EPS)).chunk(
            2, dim=1
        )
        return x + layer.down(F.silu(gate) * up)


def _rotations(context: int, head_dim: int) -> torch.Tensor:
    """`[context, head_dim / 2]` complex64 rotations by position."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    angles = torch.outer(torch.arange(context, dtype=torch.float32), 1.0 / ROPE_BASE**exponents)
    return torch.polar(torch.ones_like(angles), angles)


def _interleave(heads: int, head_dim: int) -> torch.Tensor:
    """Row order that puts dimension `i` beside `i + head_dim/2`, for each head."""
    half = head_dim // 2
    within = torch.arange(head_dim).view(2, half).t().flatten()
    return (torch.arange(heads)[:, None] * head_dim + within).flatten()


def buckets(limit: int, smallest: int = 128) -> list[int]:
    """Context lengths that attention is done over: powers of two up to `limit`."""
    count = max(0, math.ceil(math.log2(limit / smallest)))
    return [min(limit, smallest * 2**i) for i in range(count + 1)]
