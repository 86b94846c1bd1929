"""Shared fixtures: synthetic checkpoints, made once a session."""

from collections.abc import Iterator
from pathlib import Path

import pytest

# imported before the tests' warning filter turns third-party import warnings into errors
import wyoming_chattts.text.frontend  # noqa: F401
from wyoming_chattts.engine.synthetic import synthesize_checkpoint

TINY_SEED = 1


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny synthetic checkpoint."""
    folder = tmp_path_factory.mktemp("tiny")
    synthesize_checkpoint(folder, "tiny", TINY_SEED)
    return folder


@pytest.fixture(scope="session")
def full_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A synthetic checkpoint of the released model's size (1.1 GB)."""
    folder = tmp_path_factory.mktemp("full")
    synthesize_checkpoint(folder, "full", 1)
    yield folder
    for path in folder.rglob("*.safetensors"):
        path.unlink()
