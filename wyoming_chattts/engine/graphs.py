"""Decode steps as CUDA graphs: captured once per (slots, context) bucket, then replayed.

A step of ours is some hundred small kernels; launched one by one they keep a GPU waiting, replayed
from a graph they do not. On a CPU, with graphs switched off, or where capture fails for want of
memory, the same step function is called directly, so both ways run the same code.
"""

import logging
from typing import Any

import torch

from .decode import Decode

_LOGGER = logging.getLogger(__name__)

_WARM_UP_STEPS = 2
"""Eager runs before a capture, in which libraries make their handles and workspaces."""


class StepRunner:
    """Runs `Decode.step`."""

    def __init__(self, decode: Decode, *, use_graphs: bool) -> None:
        self._decode = decode
        self._slots = decode.gpt.slots
        self._enabled = use_graphs and decode.device.type == "cuda"
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        self._pool: Any = None
        """Memory that all graphs share."""

    @property
    def captured(self) -> int:
        """Number of graphs held."""
        return len(self._graphs)

    def step(self, rows: int, context: int) -> None:
        """One decode step of slots `0..rows` over the first `context` positions."""
        if not self._enabled:
            self._decode.step(rows, context)
            return
        rows = bucket_rows(rows, self._slots)
        graph = self._graphs.get((rows, context))
        if graph is None:
            graph = self._capture(rows, context)
        if graph is None:
            self._decode.step(rows, context)
        else:
            graph.replay()

    def capture_all(self, contexts: list[int]) -> None:
        """Captures every rows bucket for these contexts, so that no request waits for it."""
        rows = 1
        while self._enabled:
            for context in contexts:
                if (rows, context) not in self._graphs:
                    self._capture(rows, context)
            if rows >= self._slots:
                return
            rows = bucket_rows(rows + 1, self._slots)

    def _capture(self, rows: int, context: int) -> torch.cuda.CUDAGraph | None:
        """A graph of the step; None, and no more tries, where there is not enough memory.

        Slots keep their state: what the warm-up steps change is put back.
        """
        decode = self._decode
        kept = decode.snapshot()
        graph = torch.cuda.CUDAGraph()
        try:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UP_STEPS):
                    decode.step(rows, context)
            torch.cuda.current_stream().wait_stream(stream)
            with torch.cuda.graph(graph, pool=self._pool):
                decode.step(rows, context)
        except torch.OutOfMemoryError as error:
            _LOGGER.warning("no memory for another CUDA graph, stepping without: %s", error)
            self._enabled = False
            torch.cuda.empty_cache()
            return None
        finally:
            decode.restore(kept)
        self._pool = self._pool or graph.pool()
        self._graphs[rows, context] = graph
        return graph


def bucket_rows(rows: int, slots: int) -> int:
    """The next power of two, at most `slots`."""
    bucket = 1
    while bucket < rows:
        bucket *= 2
    return min(bucket, slots)
