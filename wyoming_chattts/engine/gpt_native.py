"""ChatTTS's GPT in int8 on a CPU: the layers of a step are one call into `native/gpt.cpp`.

Has the interface of `Gpt`. Inputs of linear layers are quantised row by row, so a row's result is
the same to the last bit whatever runs beside it. On two cores of a Zen 4 at full size a step takes
8 ms with one row and 12 with four, where plain torch over `quantized.linear` takes 17 and 21: its
thousand small operations cost as much as the weights.
"""

import ctypes
import weakref

import torch

from . import native
from .gpt import rope_angles
from .layout import Dims
from .quantize import quantized_rows
from .weights import Tensors


class NativeGpt:
    """The transformer without embeddings and heads, over a compiled library."""

    def __init__(
        self,
        library: ctypes.CDLL,
        tensors: Tensors,
        dims: Dims,
        *,
        slots: int,
        context: int,
    ) -> None:
        self.slots = slots
        self.context = context
        self.hidden = dims.hidden
        self.device = torch.device("cpu")
        self._library = library
        self._held: list[torch.Tensor] = []
        """Everything that the library points into."""
        layers = (native.Layer * dims.layers)(
            *(self._layer(tensors, f"layers.{i}.") for i in range(dims.layers))
        )
        head_dim = dims.hidden // dims.heads
        angles = rope_angles(context, head_dim)
        cache = torch.zeros(dims.layers, slots, dims.heads, 2, context, head_dim)
        shape = native.Shape(dims.layers, dims.hidden, dims.heads, dims.mlp, context, slots)
        handle = library.gpt_new(
            ctypes.byref(shape),
            layers,
            self._hold(tensors["norm.weight"]),
            self._hold(cache),
            self._hold(angles.cos()),
            self._hold(angles.sin()),
        )
        if not handle:
            raise MemoryError("no memory for the decoder")
        self._handle: int = handle
        self._rows = torch.arange(slots)
        self._threads = torch.get_num_threads()
        weakref.finalize(self, library.gpt_delete, handle)

    def _hold(self, tensor: torch.Tensor) -> int:
        self._held.append(tensor.contiguous())
        return self._held[-1].data_ptr()

    def _linear(self, *weights: torch.Tensor) -> native.Linear:
        values, scales = quantized_rows(torch.cat(weights))
        sums = values.sum(dim=1, dtype=torch.int32)
        return native.Linear(self._hold(values), self._hold(scales), self._hold(sums))

    def _layer(self, tensors: Tensors, name: str) -> native.Layer:
        def weights(*parts: str) -> list[torch.Tensor]:
            return [tensors[f"{name}{part}.weight"] for part in parts]

        return native.Layer(
            self._hold(*weights("input_layernorm")),
            self._linear(*weights("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
            self._linear(*weights("self_attn.o_proj")),
            self._hold(*weights("post_attention_layernorm")),
            self._linear(*weights("mlp.gate_proj", "mlp.up_proj")),
            self._linear(*weights("mlp.down_proj")),
        )

    def prefill(self, x: torch.Tensor, slot: int) -> torch.Tensor:
        """Hidden states `[tokens, hidden]` of a prompt's embeddings; fills the slot's cache."""
        tokens = x.shape[0]
        return self._forward(x, torch.full((tokens,), slot), torch.arange(tokens))

    def step(self, x: torch.Tensor, positions: torch.Tensor, context: int) -> torch.Tensor:
        """Hidden states `[rows, hidden]` of one token per slot, for slots `0..rows`, at
        `positions` `[rows]` int64. Reads the positions that there are, whatever `context` says."""
        return self._forward(x, self._rows[: x.shape[0]], positions)

    def _forward(
        self, x: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        out = x.clone(memory_format=torch.contiguous_format)
        positions = positions.contiguous()
        self._library.gpt_forward(
            self._handle,
            out.shape[0],
            slots.data_ptr(),
            positions.data_ptr(),
            out.data_ptr(),
            self._threads,
        )
        return out


def fits(dims: Dims) -> bool:
    """Whether the library can compute a model of these sizes."""
    head_dim = dims.hidden // dims.heads
    return not (dims.hidden % native.ALIGNMENT or dims.mlp % native.ALIGNMENT or head_dim % 16)
