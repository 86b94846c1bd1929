"""A server whose engine fails at random, for `bench faults`.

`python -m wyoming_chattts.bench.faulty SEED section.key=value …`; everything but the engine's
wrapper is the server as it is.
"""

import asyncio
import json
import logging
import random
import signal
import sys
import threading
import time
from typing import Any

import torch

from .. import logs, model, server
from ..config import Config, load, parse_override
from ..engine.base import Engine, Prompt, Sampling, SlotOutput

_LOGGER = logging.getLogger(__name__)

FIGURES = "figures "
"""How a line begins in which the process tells what it holds."""

# faults by how often a burst has one
_CHANCES = {"raise": 0.004, "memory": 0.003, "nan": 0.004, "slow": 0.002}
_START_CHANCE = 0.005
_CLOCK_CHANCE = 0.01
_CLOCK_JUMP_S = 400 * 86_400

_HANGS = threading.Event()
"""Set when the engine is to hang: at its next burst, for good."""


class FaultyEngine:
    """An engine that sometimes is not one."""

    def __init__(self, engine: Any, seed: int) -> None:
        self._engine = engine
        self._chance = random.Random(seed)
        self._clock_s = 0.0
        real = time.time
        time.time = lambda: real() + self._clock_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def start(self, slot: int, prompt: Prompt, sampling: Sampling) -> None:
        """Takes a segment, or refuses it."""
        if self._chance.random() < _START_CHANCE:
            _LOGGER.warning("fault: a start fails")
            raise RuntimeError("a fault on purpose, at the start")
        self._engine.start(slot, prompt, sampling)

    def burst(self, n_steps: int) -> list[SlotOutput]:
        """Advances the slots, or does one of the things that engines do."""
        if self._chance.random() < _CLOCK_CHANCE:
            # as where a machine without a battery hears the time from the network
            self._clock_s = self._chance.uniform(-_CLOCK_JUMP_S, _CLOCK_JUMP_S)
        if _HANGS.is_set():
            _LOGGER.warning("fault: hang")
            time.sleep(3600)
        roll = self._chance.random()
        for kind, chance in _CHANCES.items():
            if roll < chance:
                _LOGGER.warning("fault: %s", kind)
                return self._fail(kind, n_steps)
            roll -= chance
        outputs: list[SlotOutput] = self._engine.burst(n_steps)
        return outputs

    def _fail(self, kind: str, n_steps: int) -> list[SlotOutput]:
        if kind == "raise":
            raise RuntimeError("a fault on purpose, in a burst")
        if kind == "memory":
            raise torch.OutOfMemoryError("a fault on purpose: out of memory")
        if kind == "nan":
            with torch.inference_mode():
                embed = self._engine._decode._embed
                kept = embed.clone()
                embed.fill_(torch.nan)
                try:
                    outputs: list[SlotOutput] = self._engine.burst(n_steps)
                finally:
                    embed.copy_(kept)
            return outputs
        time.sleep(0.5)
        return self.burst(n_steps)


class TellingServer(server.Server):
    """A server that tells on SIGUSR1 what it holds, in a line of standard error, and whose engine
    hangs from SIGUSR2 on."""

    async def run(self) -> int:
        """Serves until the end."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, self._tell)
        loop.add_signal_handler(signal.SIGUSR2, _HANGS.set)
        return await super().run()

    def _tell(self) -> None:
        worker = self.speech.worker
        figures = {"tasks": len(asyncio.all_tasks()), "requests": self.speech.active}
        figures["segments"] = len(self.speech.flights)
        if worker is not None:
            figures |= {"queued": worker.pending, "slots": worker.running}
            figures["contexts"] = len(worker._engine._slots)  # type: ignore[attr-defined]
        print(f"{FIGURES}{json.dumps(figures)}", file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    """Serves with the settings that follow the seed; a seed of 0 means an engine without faults."""
    seed = int(arguments[0])
    config = load(overrides=dict(parse_override(text) for text in arguments[1:]))
    logs.set_up(config.log)
    load_engine = model.load_engine

    def load_faulty(given: Config) -> Engine:
        engine = load_engine(given)
        return FaultyEngine(engine, seed) if seed else engine

    for module in (model, server):
        module.load_engine = load_faulty  # type: ignore[attr-defined]
    server.Server = TellingServer  # type: ignore[misc]
    return server.serve(config)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
