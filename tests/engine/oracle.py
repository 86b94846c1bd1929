"""The stock `ChatTTS` package over a synthetic checkpoint."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from wyoming_chattts.engine.checkpoint import open_checkpoint
from wyoming_chattts.engine.reference import load_chat


def load_oracle(folder: Path) -> Any:
    """A loaded `ChatTTS.Chat` on the CPU."""
    logging.getLogger("ChatTTS").setLevel(logging.ERROR)
    checkpoint = open_checkpoint(folder, verify=False)
    return load_chat(checkpoint, torch.device("cpu"))


__all__ = ["load_oracle", "replace"]
