"""Reads safetensors files into tensors that own their memory."""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from ..errors import CheckpointError

Tensors = dict[str, torch.Tensor]


def read_tensors(path: Path, skip: tuple[str, ...] = ()) -> Tensors:
    """All tensors of a file as fp32 on the CPU, but for names that start with one of `skip`.

    Raises `CheckpointError` that names the file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return {
                # a copy: the file may be replaced or truncated while the server runs
                name: file.get_tensor(name).to(torch.float32, copy=True)
                for name in file.keys()  # noqa: SIM118 - not a mapping
                if not name.startswith(skip or ("\0",))
            }
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: {error}") from None


def weight_normed(tensors: Tensors, name: str) -> torch.Tensor:
    """Weight of a weight-normed linear: `g * v / |v|` by row (`[out, in]`)."""
    magnitude = tensors[f"{name}.parametrizations.weight.original0"]
    direction = tensors[f"{name}.parametrizations.weight.original1"]
    weight: torch.Tensor = direction * (magnitude / direction.norm(dim=1, keepdim=True))
    return weight
