"""Figures of a server in Prometheus's form, and whether it is well.

Counters and histograms are fed as requests end; gauges are read when somebody asks. Each server has
a registry of its own. Runs on the event loop.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import time
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FIRST_AUDIO_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2.5, 5, 10, 30)
_TOTAL_S = (0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300)
_RTF = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 1.5, 2, 4)
_RECENT_ERRORS = 20

Status = Literal["ok", "degraded", "starting"]


@dataclass(slots=True)
class Timings:
    """Where the time of a request went, seconds; `first_audio` is None until there is some."""

    characters: int = 0
    segments: int = 0
    cache_hits: int = 0
    shared: int = 0
    audio: float = 0.0
    queued: float | None = None
    """How long the first segment that was not cached waited for a slot."""
    first_text: float = 0.0
    """When the first of the text came; a language model may think before it writes."""
    front_end: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    codec: float = 0.0
    listener: float = 0.0
    """Time spent waiting for the listener to take audio, which costs no deadline."""
    first_audio: float | None = None
    total: float = 0.0
    fallback: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """One figure of now."""

    name: str
    text: str
    value: float
    counts: bool = False
    """Whether it only ever grows."""


@dataclass(frozen=True, slots=True)
class Health:
    """`speaking` says whether a request would be answered with audio."""

    status: Status
    reasons: tuple[str, ...]
    speaking: bool


@dataclass(frozen=True, slots=True)
class RecentError:
    """When (seconds since 1970), and the code and text that the client was sent."""

    at: float
    code: str
    text: str


class _Readings(Collector):
    """Reads the gauges when the registry is asked."""

    def __init__(self, read: Callable[[], list[Reading]]) -> None:
        self._read = read

    def describe(self) -> list[Metric]:
        """Nothing in advance, so that nothing is read before a server is whole."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The figures of now."""
        for reading in self._read():
            family = CounterMetricFamily if reading.counts else GaugeMetricFamily
            yield family(f"chattts_{reading.name}", reading.text, value=reading.value)


class Metrics:
    """What a server counts. `readings` are made afresh whenever somebody asks."""

    def __init__(self, readings: Callable[[], list[Reading]]) -> None:
        self.readings = readings
        self.errors: deque[RecentError] = deque(maxlen=_RECENT_ERRORS)
        self.outcomes: dict[str, int] = {}
        """Requests by how they ended: "ok", "gone" or an error code."""
        self._registry = CollectorRegistry()
        self._registry.register(_Readings(readings))
        self._requests = Counter(
            "chattts_requests", "Requests by how they ended", ["outcome"], registry=self._registry
        )
        self._fallbacks = Counter(
            "chattts_fallback_requests",
            "Requests that the fallback voice spoke, wholly or in part",
            registry=self._registry,
        )
        self._audio = Counter(
            "chattts_audio_seconds", "Audio that was sent", registry=self._registry
        )
        self._first_audio = Histogram(
            "chattts_first_audio_seconds",
            "From the request to its first audio",
            buckets=_FIRST_AUDIO_S,
            registry=self._registry,
        )
        self._total = Histogram(
            "chattts_request_seconds",
            "From the request to its last audio",
            buckets=_TOTAL_S,
            registry=self._registry,
        )
        self._rtf = Histogram(
            "chattts_real_time_factor",
            "Time of a request over the time of its audio; below 1 is faster than speech",
            buckets=_RTF,
            registry=self._registry,
        )

    def request(
        self, outcome: str, timings: Timings | None = None, total_s: float | None = None
    ) -> None:
        """Books the end of a request. `total_s` is its whole time, if the timings' is not."""
        timings = timings or Timings()
        total = timings.total if total_s is None else total_s
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        self._requests.labels(outcome).inc()
        self._audio.inc(timings.audio)
        if timings.fallback:
            self._fallbacks.inc()
        if timings.first_audio is not None:
            self._first_audio.observe(timings.first_audio)
        if outcome == "ok":
            self._total.observe(total)
            if timings.audio:
                self._rtf.observe(total / timings.audio)

    def error(self, code: str, text: str) -> None:
        """Keeps an error for whoever looks."""
        self.errors.append(RecentError(time(), code, text))

    def text(self) -> bytes:
        """All figures in Prometheus's text form."""
        return generate_latest(self._registry)
