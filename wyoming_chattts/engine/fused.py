"""The small operations between a step's matrix products, each as one kernel where it pays.

On CUDA, `torch.compile` makes a Triton kernel of each: residual and norm, rotation and cache write,
SwiGLU, drawing a code. `Kernels.plain()` are the same functions uncompiled, for prompts (whose
lengths differ, so that each would be compiled anew), for the CPU (where a call into a compiled
function costs what it saves; see `gpt_native`), and wherever compiling fails.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from .sampling import pick

_LOGGER = logging.getLogger(__name__)

RMS_EPS = 1e-6


def add_norm(
    x: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """`x + delta`, `[rows, hidden]` fp32, and its RMS norm. `delta` may be in half precision."""
    x = x + delta
    return x, F.rms_norm(x, (x.shape[-1],), weight, RMS_EPS)


def rotate(
    qkv: torch.Tensor, rope: torch.Tensor, cache: torch.Tensor, where: torch.Tensor
) -> torch.Tensor:
    """Rotated queries `[rows, hidden]` of `qkv` `[rows, 3*hidden]`; keys (rotated) and values go to
    rows `where` of `cache` `[slots*context, 2*hidden]`.

    Rotary pairs lie side by side; `rope` is `[rows, head_dim/2, 2]`: cosine and sine.
    """
    rows, hidden = qkv.shape[0], qkv.shape[1] // 3
    qkv = qkv.float()
    pairs = qkv[:, : 2 * hidden].view(rows, -1, rope.shape[1], 2)
    a, b = pairs.unbind(-1)
    cos, sin = rope[:, None, :, 0], rope[:, None, :, 1]
    rotated = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).view(rows, 2 * hidden)
    kept = torch.cat((rotated[:, hidden:], qkv[:, 2 * hidden :]), dim=1)
    cache.index_copy_(0, where, kept.to(cache.dtype))
    return rotated[:, :hidden].to(cache.dtype)


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up` of `[rows, 2*inner]`."""
    gate, up = gate_up.chunk(2, dim=1)
    return F.silu(gate) * up


@dataclass(slots=True)
class Kernels:
    """The functions above, and `sampling.pick`, compiled or not."""

    add_norm: Callable[..., tuple[torch.Tensor, torch.Tensor]] = add_norm
    rotate: Callable[..., torch.Tensor] = rotate
    swiglu: Callable[..., torch.Tensor] = swiglu
    pick: Callable[..., torch.Tensor] = pick

    @classmethod
    def compiled(cls) -> "Kernels":
        """Compiled at first use, for one row and for any number. Where that fails (no Triton, no
        compiler for its launcher, a card it does not know), all become the plain functions, after
        one log line.
        """
        kernels = cls()
        for name in cls.__slots__:
            setattr(kernels, name, kernels._guarded(getattr(kernels, name)))
        return kernels

    def _guarded(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        function = torch.compile(plain, fullgraph=True)

        def call(*arguments: Any) -> Any:
            try:
                return function(*arguments)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - a compiler may fail in any way
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                _LOGGER.warning("no fused kernels (%s); plain torch is used", reason[:200])
                untouched = Kernels()
                for name in self.__slots__:
                    setattr(self, name, getattr(untouched, name))
                return plain(*arguments)

        return call
