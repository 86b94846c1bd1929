"""ChatTTS's GPT: a Llama decoder with a preallocated KV cache for a fixed number of slots.

Activations and norms are float32; the linear layers have the precision that was chosen. Query,
key and value are one product, gate and up another. The rows of the query and key weights are
reordered at load so that rotary pairs lie side by side; scores do not depend on that order. Runs on
the inference thread.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from .fused import Kernels
from .layout import Dims
from .quantize import Linear, cache_dtype, make_linear
from .weights import Tensors

ROPE_BASE = 10_000.0


class Transformer(Protocol):
    """What `Gpt` and `NativeGpt` have in common: see their methods."""

    slots: int
    context: int
    hidden: int
    device: torch.device

    def prefill(self, x: torch.Tensor, slot: int) -> torch.Tensor: ...

    def step(self, x: torch.Tensor, positions: torch.Tensor, context: int) -> torch.Tensor: ...


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
        kernels: Kernels | None = None,
    ) -> None:
        self._kernels = kernels or Kernels()
        self._plain = Kernels()
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
        angles = rope_angles(context, self.head_dim)
        self._rope = torch.stack((angles.cos(), angles.sin()), dim=-1).to(device)
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

        def attend(i: int, q: torch.Tensor) -> torch.Tensor:
            k, v = self.kv[i, slot : slot + 1, :tokens].unbind(2)
            queries = q.view(1, tokens, self.heads, self.head_dim).transpose(1, 2)
            attended = F.scaled_dot_product_attention(
                queries, k.transpose(1, 2), v.transpose(1, 2), is_causal=True
            )
            return attended.transpose(1, 2).reshape(tokens, self.hidden)

        return self._layers_of(self._plain, x, self._rope[:tokens], where, attend)

    def step(self, x: torch.Tensor, positions: torch.Tensor, context: int) -> torch.Tensor:
        """Hidden states `[rows, hidden]` of one token per slot, for slots `0..rows`.

        `positions` is `[rows]` int64; `context` bounds the positions that are looked at
        (`positions.max() < context`). No host sync, no shape that depends on data.
        """
        rows = x.shape[0]
        where = self._row_offsets[:rows] + positions
        mask = (self._positions[:context] <= positions[:, None])[:, None, None, :]

        def attend(i: int, q: torch.Tensor) -> torch.Tensor:
            k, v = self.kv[i, :rows, :context].unbind(2)
            queries = q.view(rows, self.heads, 1, self.head_dim)
            attended = F.scaled_dot_product_attention(
                queries, k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask
            )
            return attended.reshape(rows, self.hidden)

        return self._layers_of(self._kernels, x, self._rope[positions], where, attend)

    def _layers_of(
        self,
        kernels: Kernels,
        x: torch.Tensor,
        rope: torch.Tensor,
        where: torch.Tensor,
        attend: Callable[[int, torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """Hidden states after all layers. A layer's last product is added with the next norm."""
        delta = torch.zeros_like(x)
        for i, layer in enumerate(self._layers):
            x, normed = kernels.add_norm(x, delta, layer.attention_norm)
            q = kernels.rotate(layer.qkv(normed), rope, self._kv_rows[i], where)
            x, normed = kernels.add_norm(x, layer.out(attend(i, q)), layer.mlp_norm)
            delta = layer.down(kernels.swiglu(layer.gate_up(normed)))
        return kernels.add_norm(x, delta, self._norm)[1]


def rope_angles(context: int, head_dim: int) -> torch.Tensor:
    """Angles of rotation by position and pair: `[context, head_dim / 2]`."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    return torch.outer(torch.arange(context, dtype=torch.float32), 1.0 / ROPE_BASE**exponents)


def _interleave(heads: int, head_dim: int) -> torch.Tensor:
    """Row order that puts dimension `i` beside `i + head_dim/2`, for each head."""
    half = head_dim // 2
    within = torch.arange(head_dim).view(2, half).t().flatten()
    return (torch.arange(heads)[:, None] * head_dim + within).flatten()


def buckets(limit: int, smallest: int = 128) -> list[int]:
    """Context lengths that attention is done over: powers of two up to `limit`."""
    count = max(0, math.ceil(math.log2(limit / smallest)))
    return [min(limit, smallest * 2**i) for i in range(count + 1)]
