"""Linear layers at the precision that was chosen.

int8 is for the CPU, where a step is bound by reading weights; `gpt_native` computes it in one call
where there is a compiler. Elsewhere, of what torch has, `quantized.linear`
(dynamic, x86 engine) read the layers of a step fastest: on two cores of a Zen 4, one row, 6.5 ms
against 51.7 in fp32, 21.3 in bf16, 7.7 with fbgemm, 9.8 with onednn, 11.1 with `_int_mm` and 13.7
with `_weight_int8pack_mm`. It scales activations by the range of the whole input, so a row's result
would depend on its neighbours; here each row is scaled to absmax 1 beforehand and a row of ±1
stands beside it, so that the range is always the same. Weights have a scale per output channel.
Embeddings, norms and heads stay in fp32.
"""

import logging
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F

from ..errors import ConfigError

_LOGGER = logging.getLogger(__name__)

Linear = Callable[[torch.Tensor], torch.Tensor]
"""`[rows, in]` → `[rows, out]`, without bias; the result has the dtype that was computed in."""


def cache_dtype(precision: str, device: torch.device) -> torch.dtype:
    """What keys and values are kept in."""
    if precision == "int8":
        return torch.float16 if device.type == "cuda" else torch.float32
    return DTYPES[precision]


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_ENGINES = ("x86", "fbgemm", "onednn")
_MIN_ABSMAX = 1e-12


def resolve(precision: str, device: torch.device) -> str:
    """The precision that a setting means on a device: fp16 on CUDA and int8 on a CPU for `auto`,
    fp32 or fp16 for int8 where torch has no kernel for it (with a warning)."""
    chosen = precision
    if precision == "auto":
        chosen = "fp16" if device.type == "cuda" else "int8"
    if chosen == "int8" and not _has_int8(device):
        instead = "fp16" if device.type == "cuda" else "fp32"
        if precision != "auto":
            _LOGGER.warning("engine.precision: int8 is not to be had here; using %s", instead)
        return instead
    return chosen


def _has_int8(device: torch.device) -> bool:
    """Whether int8 works on a device: tried, since kernels differ by card and torch release."""
    if device.type == "cpu":
        return int8_engine() is not None
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn((64, 128), generator=generator)
    x = torch.randn((2, 128), generator=generator)
    exact = x @ weight.t()
    try:
        found = int8_weight_only(weight, device)(x.to(device)).float().cpu()
    except (RuntimeError, AssertionError) as error:
        _LOGGER.debug("int8 weights do not work on %s: %s", device, error)
        return False
    return bool((found - exact).norm() < 0.05 * exact.norm())


def int8_engine() -> str | None:
    """The quantized engine to use, or None."""
    supported = torch.backends.quantized.supported_engines
    return next((name for name in _ENGINES if name in supported), None)


def make_linear(weight: torch.Tensor, precision: str, device: torch.device) -> Linear:
    """A linear layer from its fp32 weight `[out, in]`."""
    if precision == "int8":
        return int8_weight_only(weight, device) if device.type == "cuda" else _int8_linear(weight)
    dtype = DTYPES[precision]
    held = weight.to(device=device, dtype=dtype).contiguous()
    if dtype is torch.float32:
        return lambda x: F.linear(x, held)
    return lambda x: F.linear(x.to(dtype), held)


def quantized_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 values of a weight `[out, in]`, and a scale per output `[out]`."""
    scales = (weight.abs().amax(dim=1) / 127).clamp(min=_MIN_ABSMAX)
    return (weight / scales[:, None]).round().to(torch.int8).contiguous(), scales


def int8_weight_only(weight: torch.Tensor, device: torch.device) -> Linear:
    """int8 weights with bfloat16 activations, for GPUs whose memory is slow or small: half the
    bytes of fp16. No activation is quantised, so rows do not depend on each other."""
    values, scales = quantized_rows(weight)
    held = values.to(device)
    factors = scales.to(device=device, dtype=torch.bfloat16)

    def linear(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch._weight_int8pack_mm(x.to(torch.bfloat16), held, factors)
        return result

    return linear


def _int8_linear(weight: torch.Tensor) -> Linear:
    scales = (weight.abs().amax(dim=1) / 127).clamp(min=_MIN_ABSMAX)
    engine = int8_engine()
    if engine is None:
        raise ConfigError("engine.precision: torch has no int8 engine for this CPU")
    torch.backends.quantized.engine = engine
    with warnings.catch_warnings():
        # torch announces that quantized tensors will move to torchao, which has no faster kernel
        warnings.simplefilter("ignore")
        quantized = torch.quantize_per_channel(
            weight.contiguous(),
            scales.double(),
            torch.zeros(weight.shape[0], dtype=torch.int64),
            0,
            torch.qint8,
        )
        packed = torch.ops.quantized.linear_prepack(quantized, None)
    # without VNNI the kernel adds pairs of products in 16 bits, which needs a bit less
    has_vnni = getattr(torch.cpu, "_is_vnni_supported", lambda: False)
    reduce_range = not has_vnni()
    size = weight.shape[1]
    buffer = torch.zeros(0, size)

    def linear(x: torch.Tensor) -> torch.Tensor:
        nonlocal buffer
        rows = x.shape[0] + 1
        if buffer.shape[0] < rows:
            buffer = torch.zeros(rows, size)
            buffer[0, 0], buffer[0, 1] = 1.0, -1.0
        absmax = torch.linalg.vector_norm(x, torch.inf, dim=1, keepdim=True).clamp_(min=_MIN_ABSMAX)
        inputs = buffer[:rows]
        torch.div(x, absmax, out=inputs[1:])
        result: torch.Tensor = torch.ops.quantized.linear_dynamic(inputs, packed, reduce_range)
        return result[1:].mul_(absmax)

    return linear
