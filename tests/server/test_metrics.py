"""/metrics read with Prometheus' own parser, after requests that end in every way."""

from __future__ import annotations

import mmap
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine import Finished, LoadProgress
from tests.fake_engine import FakeEngine, Script
from tests.server.conftest import Running, wait_until_ready
from tests.server.wire import RawConnection, wait_until

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}
N_PROMPT = len("<user>Hello<assistant>") + 1
ENDLESS = Script(("word ",), endless=True, delay_s=0.01)
LONG_PREFILL = Script(prefill_s=60)


class Metrics:
    """The metrics of one server, asked for anew with each look."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/metrics"

    def __call__(self, name: str, /, **labels: str) -> float:
        """The value of one sample; 0 where there is none."""
        found = [
            sample.value
            for family in text_string_to_metric_families(self.text())
            for sample in family.samples
            if sample.name == f"rushlight_{name}" and sample.labels.items() >= labels.items()
        ]
        assert len(found) <= 1, f"{name} {labels} is ambiguous"
        return found[0] if found else 0.0

    def text(self) -> str:
        reply = httpx.get(self._url)
        assert reply.status_code == 200
        assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        return reply.text

    def in_flight(self) -> tuple[float, float]:
        return self("generations_running"), self("generations_waiting")


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def running(serve: Any, engine: FakeEngine) -> Running:
    """A server of this test's own, with nothing counted yet."""
    started: Running = serve(engine)
    return started


@pytest.fixture
def metrics(running: Running) -> Metrics:
    return Metrics(running.url)


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply(running: Running, metrics: Metrics, engine: FakeEngine, stream: bool) -> None:
    for _ in range(2):
        reply = httpx.post(running.url + CHAT, json={**HELLO, "stream": stream})
        assert reply.status_code == 200
    wait_until(lambda: metrics("requests_total", route=CHAT, status="200") == 2)
    assert metrics("request_seconds_count", route=CHAT) == 2
    assert metrics("prompt_tokens_total") == 2 * N_PROMPT
    assert metrics("cached_tokens_total") == N_PROMPT - 1  # all but the last, which must be read
    assert metrics("generated_tokens_total") == 2 * 4
    ends = [end for end, _ in engine.ends.values() if isinstance(end, Finished)]
    assert metrics("queue_seconds_count") == 2
    assert metrics("time_to_first_token_seconds_count") == 2
    assert metrics("time_to_first_token_seconds_sum") == pytest.approx(
        sum(end.timings.queue_s + end.timings.prefill_s for end in ends)
    )
    assert metrics("time_per_output_token_seconds_count") == 2
    assert metrics("time_per_output_token_seconds_sum") == pytest.approx(
        sum(end.timings.decode_s for end in ends) / 3
    )
    assert metrics.in_flight() == (0, 0)
    assert "rushlight_errors_total{" not in metrics.text()


def test_every_prompt_of_a_request_is_a_generation(running: Running, metrics: Metrics) -> None:
    httpx.post(running.url + TEXT, json={"prompt": ["A", "B"], "max_tokens": 1})
    wait_until(lambda: metrics("requests_total", route=TEXT, status="200") == 1)
    assert metrics("prompt_tokens_total") == 2 * 2
    assert metrics("generated_tokens_total") == 2
    assert metrics("time_to_first_token_seconds_count") == 2
    assert metrics("time_per_output_token_seconds_count") == 0, "there is none after the first"


def test_tokens_are_counted_while_they_come(
    running: Running, metrics: Metrics, engine: FakeEngine
) -> None:
    engine.script = ENDLESS
    with RawConnection(running.port) as client:
        client.post(CHAT, {**HELLO, "stream": True})
        wait_until(lambda: metrics("generated_tokens_total") > 3)
        assert metrics("prompt_tokens_total") == N_PROMPT
        before = metrics("generated_tokens_total")
        wait_until(lambda: metrics("generated_tokens_total") > before)
        assert metrics("queue_seconds_count") == 0
    engine.wait_until_idle()
    wait_until(lambda: metrics("queue_seconds_count") == 1)
    end, _ = engine.last_end()
    assert isinstance(end, Finished)
    assert metrics("generated_tokens_total") == end.n_decoded
    assert metrics("prompt_tokens_total") == N_PROMPT


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", [ENDLESS, LONG_PREFILL])
def test_clients_that_leave(
    running: Running, metrics: Metrics, engine: FakeEngine, script: Script, stream: bool
) -> None:
    engine.script = script
    with RawConnection(running.port) as first, RawConnection(running.port) as second:
        first.post(CHAT, {**HELLO, "stream": stream})
        wait_until(lambda: metrics.in_flight() == (1, 0))
        second.post(CHAT, {**HELLO, "stream": stream})
        wait_until(lambda: metrics.in_flight() == (1, 1))
    wait_until(lambda: metrics("errors_total", type="client_left") == 2)
    wait_until(lambda: metrics.in_flight() == (0, 0))
    status = "200" if stream else "none"
    assert metrics("requests_total", route=CHAT, status=status) == 2
    if script is LONG_PREFILL:
        assert metrics("time_to_first_token_seconds_count") == 0
        assert metrics("prompt_tokens_total") < N_PROMPT, "what was not read is not counted"


@pytest.mark.parametrize("stream", [False, True])
def test_failures(running: Running, metrics: Metrics, engine: FakeEngine, stream: bool) -> None:
    engine.script = Script(fail_after=2)
    httpx.post(running.url + CHAT, json={**HELLO, "stream": stream})
    wait_until(lambda: metrics("errors_total", type="internal_error") == 1)
    assert metrics("requests_total", route=CHAT, status="200" if stream else "500") == 1
    assert metrics("generated_tokens_total") == 2
    assert metrics("time_to_first_token_seconds_count") == 0
    assert metrics.in_flight() == (0, 0)


def test_an_engine_that_stops_takes_all_with_it(
    running: Running, metrics: Metrics, engine: FakeEngine
) -> None:
    engine.script = LONG_PREFILL
    with RawConnection(running.port) as first, RawConnection(running.port) as second:
        for client in (first, second):
            client.post(CHAT, HELLO)
        wait_until(lambda: metrics.in_flight() == (1, 1))
        engine.crash()
        assert first.reply().status == second.reply().status == 500
    assert metrics.in_flight() == (0, 0)
    wait_until(lambda: metrics("errors_total", type="engine_failed") == 2)


def test_some_prompts_that_do_not_fit_leave_nothing_behind(serve: Any) -> None:
    engine = FakeEngine(LONG_PREFILL, max_waiting=3)
    running: Running = serve(engine)
    metrics = Metrics(running.url)
    with RawConnection(running.port) as busy:
        busy.post(TEXT, {"prompt": ["a", "b"], "stream": True})
        wait_until(lambda: metrics.in_flight() == (1, 1))
        reply = httpx.post(running.url + TEXT, json={"prompt": ["c", "d", "e"]})
        assert reply.status_code == 429
        wait_until(lambda: metrics("errors_total", type="queue_full") == 1)
    wait_until(lambda: metrics.in_flight() == (0, 0))
    engine.wait_until_idle()
    wait_until(lambda: metrics("queue_seconds_count") == 4)


@pytest.mark.parametrize(
    ("method", "path", "body", "route", "status", "error"),
    [
        ("POST", CHAT, {}, CHAT, "400", "invalid_request_error"),
        ("POST", TEXT, {"prompt": "x" * 600}, TEXT, "400", "context_length_exceeded"),
        ("GET", CHAT, None, CHAT, "405", "method_not_allowed"),
        ("GET", "/nothing", None, "none", "404", "not_found"),
        ("GET", "/v1/models/x", None, "/v1/models/{model_id:path}", "404", "model_not_found"),
    ],
)
def test_refusals(
    running: Running,
    metrics: Metrics,
    method: str,
    path: str,
    body: Any,
    route: str,
    status: str,
    error: str,
) -> None:
    httpx.request(method, running.url + path, json=body)
    wait_until(lambda: metrics("requests_total", route=route, status=status) == 1)
    assert metrics("errors_total", type=error) == 1


def test_while_the_model_loads(serve: Any) -> None:
    go, half = threading.Event(), threading.Event()

    def make_engine(on_load: Any) -> Any:
        on_load(LoadProgress("compiling kernels", 3, 40))
        half.set()
        go.wait()
        return FakeEngine()

    running: Running = serve(make_engine)
    assert half.wait(20)
    metrics = Metrics(running.url)
    assert metrics("model_info") == 0
    assert metrics.in_flight() == (0, 0)
    httpx.post(running.url + CHAT, json=HELLO)
    wait_until(lambda: metrics("errors_total", type="model_loading") == 1)
    go.set()
    wait_until_ready(running)
    told = {"name": "fake-1b", "architecture": "llama", "file_type": "Q4_1", "n_ctx": "512"}
    assert metrics("model_info", **told) == 1


def test_memory_adds_up_to_the_processs_own(metrics: Metrics) -> None:
    """The server runs in this process, so both see the same, but that pages come and go."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    kinds = [
        metrics("resident_memory_bytes", kind=kind) for kind in ("anonymous", "file", "shared")
    ]
    assert kinds[0] > 10e6 and kinds[1] > 1e6
    assert sum(kinds) == pytest.approx(resident, rel=0.1)


def test_it_keeps_prometheus_rules(running: Running, metrics: Metrics) -> None:
    httpx.post(running.url + CHAT, json=HELLO)
    families = list(text_string_to_metric_families(metrics.text()))
    assert families
    for family in families:
        assert family.name.startswith("rushlight_")
        assert family.documentation.endswith(".")
        if family.type == "histogram":
            assert family.name.endswith("_seconds")
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples)
    edges = [
        float(sample.labels["le"])
        for family in families
        for sample in family.samples
        if sample.name == "rushlight_queue_seconds_bucket"
    ]
    assert edges[0] == 0.05 and edges[-2:] == [600, float("inf")]


def test_it_is_described(http: httpx.Client) -> None:
    described = http.get("/openapi.json").json()["paths"]["/metrics"]["get"]
    assert described["responses"]["200"]["content"] == {
        "text/plain": {"schema": {"type": "string"}}
    }


def test_what_memory_is_used_for(metrics: Metrics, engine: FakeEngine) -> None:
    report = engine.memory()
    for use in ("weights", "libraries", "kv", "workspace", "process"):
        assert metrics("memory_bytes", use=use) == getattr(report, use) > 0
    assert metrics("weights_bytes", state="mapped") == report.weights_mapped
    assert metrics("weights_bytes", state="cached") == report.weights_cached
    assert metrics("kv_limit_bytes") == report.kv_limit
    assert metrics("disk_cache_bytes") == report.disk_cache
