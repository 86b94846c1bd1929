"""Linear layers at the precision that was chosen."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

Linear = Callable[[torch.Tensor], torch.Tensor]
"""`[rows, in]` float32 → `[rows, out]` float32, without bias."""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def resolve(precision: str, device: torch.device) -> str:
    """The precision that `auto` means on a device."""
    if precision != "auto":
        return precision
    return "fp16" if device.type == "cuda" else "fp32"


def make_linear(weight: torch.Tensor, precision: str, device: torch.device) -> Linear:
    """A linear layer from its fp32 weight `[out, in]`."""
    dtype = DTYPES[precision]
    held = weight.to(device=device, dtype=dtype).contiguous()
    if dtype is torch.float32:
        return lambda x: F.linear(x, held)
    return lambda x: F.linear(x.to(dtype), held).float()
