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
        self,
        outcome: str,
        *,
        first_audio_s: float | None = None,
        total_s: float = 0.0,
        audio_s: float = 0.0,
        fallback: bool = False,
    ) -> None:
        """Books the end of a request."""
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        self._requests.labels(outcome).inc()
        self._audio.inc(audio_s)
        if fallback:
            self._fallbacks.inc()
        if first_audio_s is not None:
            self._first_audio.observe(first_audio_s)
        if outcome == "ok":
            self._total.observe(total_s)
            if audio_s:
                self._rtf.observe(total_s / audio_s)

    def error(self, code: str, text: str) -> None:
        """Keeps an error for whoever looks."""
        self.errors.append(RecentError(time(), code, text))

    def text(self) -> bytes:
        """All figures in Prometheus's text form."""
        return generate_latest(self._registry)
