"""Metrics: what the server has done and what it is doing, in Prometheus' text format.

Told of requests and generations where they begin and end. What changes with every token is read
from the generations when somebody asks. Knows no routes. For the event loop's thread only.
"""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from engine import EngineClosed, Failed, Finished, Generation, MemoryReport, Phase, Progress
from server.errors import ModelLoading
from server.loader import EngineLoader

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

# Upper edges in seconds. An old CPU may take minutes over a long prompt, and a second over a token.
_WAITS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
_TOKENS: Final = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 10)

_PROCESS_STATUS: Final = Path("/proc/self/status")
_MEMORY_KINDS: Final = {"RssAnon": "anonymous", "RssFile": "file", "RssShmem": "shared"}

# A second series for each counter, with the time it began at.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """Those of one application, in a registry of its own."""

    def __init__(self, loader: EngineLoader) -> None:
        self._loader = loader
        self._open: dict[Generation, Progress] = {}  # and what of it is counted already
        self._registry = registry = CollectorRegistry()

        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        waits = partial(Histogram, registry=registry, buckets=_WAITS)

        self._requests = counter(
            "rushlight_requests_total",
            "HTTP requests that have ended; status 'none' where the client left before any.",
            ["route", "status"],
        )
        self._errors = counter(
            "rushlight_errors_total",
            "HTTP requests that ended in an error, by its code; 'client_left' where nobody waited.",
            ["type"],
        )
        self._request_s = waits(
            "rushlight_request_seconds",
            "From an HTTP request's first byte to the last of its reply.",
            ["route"],
        )
        self._queue_s = waits("rushlight_queue_seconds", "What a generation waited for others.")
        self._ttft_s = waits(
            "rushlight_time_to_first_token_seconds",
            "From a generation's way into the queue to its first token.",
        )
        self._tpot_s = Histogram(
            "rushlight_time_per_output_token_seconds",
            "Mean time of a generation's tokens after the first.",
            buckets=_TOKENS,
            registry=registry,
        )
        self._n_prompt = counter(
            "rushlight_prompt_tokens_total",
            "Tokens of prompts that were read, those from the cache included.",
        )
        self._n_cached = counter(
            "rushlight_cached_tokens_total",
            "Tokens of prompts that came from the cache; counted when a generation ends.",
        )
        self._n_decoded = counter("rushlight_generated_tokens_total", "Tokens generated.")
        self._running = gauge(
            "rushlight_generations_running",
            "Generations being worked on. A request has one for each of its prompts.",
        )
        self._waiting = gauge("rushlight_generations_waiting", "Generations in the queue.")
        self._memory = gauge(
            "rushlight_resident_memory_bytes",
            "Memory of the process; the mapped model is 'file', which the system can take back.",
            ["kind"],
        )
        self._memory_use = gauge(
            "rushlight_memory_bytes",
            "What the process's memory is used for; absent while the model loads.",
            ["use"],
        )
        self._weights = gauge(
            "rushlight_weights_bytes",
            "The model's file: 'mapped' all of it, 'cached' what the system has in memory.",
            ["state"],
        )
        self._kv_limit = gauge(
            "rushlight_kv_limit_bytes", "What the keys and values of all chats may grow to now."
        )
        self._disk_cache = gauge("rushlight_disk_cache_bytes", "Chats on the disk.")
        self._model = gauge(
            "rushlight_model_info",
            "The model that is served; absent while it loads.",
            ["name", "architecture", "file_type", "n_params", "n_ctx"],
        )

    def request_ended(self, route: str, status: int, error: str, took_s: float) -> None:
        """route: as it is declared, parameters unfilled; status: 0 = none was sent; error: its
        code, '' = all went well.
        """
        self._requests.labels(route, str(status or "none")).inc()
        self._request_s.labels(route).observe(took_s)
        if error:
            self._errors.labels(error).inc()

    def generation_started(self, generation: Generation) -> None:
        """It was submitted."""
        self._open[generation] = Progress(Phase.QUEUED, 0, 0, 0, 0, 0.0)

    def generation_ended(self, generation: Generation, end: Finished | Failed) -> None:
        """Its last event has come."""
        self._count_tokens(generation)
        del self._open[generation]
        if isinstance(end, Failed):
            return  # which says nothing of times
        timings = end.timings
        self._n_cached.inc(end.n_cached)
        self._queue_s.observe(timings.queue_s)
        if end.n_decoded > 0:
            self._ttft_s.observe(timings.queue_s + timings.prefill_s)
        if end.n_decoded > 1:
            self._tpot_s.observe(timings.decode_s / (end.n_decoded - 1))

    def text(self, report: MemoryReport | None) -> bytes:
        """Everything as it is now, in the format that CONTENT_TYPE names.

        report: the engine's; None while there is no engine.
        """
        phases = [self._count_tokens(generation) for generation in self._open]
        self._waiting.set(phases.count(Phase.QUEUED))
        self._running.set(phases.count(Phase.PREFILL) + phases.count(Phase.DECODE))
        for kind, n_bytes in _resident_memory().items():
            self._memory.labels(kind).set(n_bytes)
        if report:
            self._note_memory(report)
        with contextlib.suppress(ModelLoading, EngineClosed):
            model = self._loader.engine().model
            self._model.labels(
                model.name,
                model.architecture,
                model.file_type,
                str(model.n_params),
                str(model.n_ctx),
            ).set(1)
        return generate_latest(self._registry)

    def _note_memory(self, report: MemoryReport) -> None:
        for use in ("weights", "libraries", "kv", "workspace", "process"):
            self._memory_use.labels(use).set(getattr(report, use))
        self._weights.labels("mapped").set(report.weights_mapped)
        if report.weights_cached is not None:
            self._weights.labels("cached").set(report.weights_cached)
        self._kv_limit.set(report.kv_limit)
        self._disk_cache.set(report.disk_cache)

    def _count_tokens(self, generation: Generation) -> Phase:
        """Count those that came since the last look; returns where the generation is now."""
        before, now = self._open[generation], generation.progress()
        self._n_prompt.inc(now.n_prefilled - before.n_prefilled)
        self._n_decoded.inc(now.n_decoded - before.n_decoded)
        self._open[generation] = now
        return now.phase


def _resident_memory() -> dict[str, int]:
    """Bytes of each kind; empty where the system has no /proc."""
    try:
        lines = _PROCESS_STATUS.read_text().splitlines()
    except OSError:
        return {}
    fields = dict(line.split(":", 1) for line in lines)
    return {
        kind: int(fields[name].split()[0]) << 10  # given in KiB
        for name, kind in _MEMORY_KINDS.items()
        if name in fields
    }
