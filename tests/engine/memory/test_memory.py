"""The memory budget: what is chosen, what is refused, and the number that would fit."""

from __future__ import annotations

import re

import pytest

from engine import ConfigError, EngineConfig
from engine.memory.free_memory import FreeMemory
from engine.memory.memory import Budget, Sizes, plan_memory

MIB = 1 << 20
PAGE_BYTES = 2 * MIB  # 32 KiB per token, as a 1B model's


def chat_bytes(n_ctx: int) -> int:
    return ((n_ctx + 63) // 64 + 2) * PAGE_BYTES


def plan(free: int, n_ctx_train: int = 131072, weights: int = 700, **settings: object) -> Budget:
    """free, weights in MiB."""
    sizes = Sizes(weights * MIB, 80 * MIB, 100 * MIB, chat_bytes)
    config = EngineConfig("m.gguf", **settings)  # type: ignore[arg-type]
    return plan_memory(config, n_ctx_train, sizes, FreeMemory(free * MIB, "free"))


def test_a_small_model_gets_its_own_context() -> None:
    budget = plan(16000, n_ctx_train=8192)
    assert budget.n_ctx == 8192
    assert budget.cache > 4 * chat_bytes(8192)
    assert budget.anonymous <= budget.limit
    assert budget.weights + budget.anonymous < 16000 * MIB + 100 * MIB


def test_a_long_context_is_cut_to_what_fits() -> None:
    budget = plan(3000)
    room = 3000 - 700 - 80 - 150
    assert budget.n_ctx == (room // 2 // 2 // 2 - 2) * 64  # half of it, two chats, 2 MiB a page
    assert chat_bytes(budget.n_ctx) <= budget.cache


@pytest.mark.parametrize("free", [600, 1000, 2048, 4096, 30000])
def test_what_is_chosen_fits_whatever_there_is(free: int) -> None:
    budget = plan(free)
    assert budget.n_ctx >= 2048
    assert budget.chat == chat_bytes(budget.n_ctx)
    assert budget.anonymous <= budget.limit


def test_weights_larger_than_memory_leave_a_quarter() -> None:
    budget = plan(2048, weights=5000)
    assert budget.limit == 100 * MIB + 512 * MIB


def test_what_cannot_fit_is_refused_with_the_number_that_would() -> None:
    with pytest.raises(ConfigError) as refused:
        plan(2000, n_ctx=131072)
    text = str(refused.value)
    assert text.startswith("n_ctx = 131072 needs 4100 MiB for keys and values")
    fits = int(re.findall(r"n_ctx = (\d+) would fit", text)[0])
    assert plan(2000, n_ctx=fits).n_ctx == fits
    with pytest.raises(ConfigError):
        plan(2000, n_ctx=fits + 64)


def test_a_cache_of_a_given_size() -> None:
    budget = plan(16000, cache_bytes=300 * MIB)
    assert budget.cache == 150 * PAGE_BYTES
    assert budget.n_ctx == (150 // 2 - 2) * 64
    assert plan(16000, cache_bytes=20 * MIB).n_ctx == 8 * 64
    with pytest.raises(ConfigError, match=r"cache.memory leaves 300 MiB; n_ctx = 9472 would fit"):
        plan(16000, cache_bytes=300 * MIB, n_ctx=16384)
    with pytest.raises(
        ConfigError, match=r"cache.memory = 20000 MiB does not fit: at most \d+ MiB"
    ):
        plan(16000, cache_bytes=20000 * MIB)


def test_a_bound_for_all_anonymous_memory() -> None:
    budget = plan(16000, max_memory_bytes=1000 * MIB)
    assert budget.anonymous <= budget.limit == 1000 * MIB
    with pytest.raises(ConfigError, match=r"max_memory of 300 MiB is too small.* at least 336 MiB"):
        plan(16000, max_memory_bytes=300 * MIB)
    assert (
        plan(16000, max_memory_bytes=360 * MIB).n_ctx == 13 * 64
    )  # (360 - 250 - 80) / 2 pages, 2 kept


def test_the_table_adds_up() -> None:
    rows = re.findall(r"^(\S.*?) +(\d+) MiB$", plan(16000, n_ctx=4096).table(), re.MULTILINE)
    numbers = {name: int(number) for name, number in rows}
    parts = ["weights, mapped", "workspace", "one chat of 4096 tokens", "other chats", "process"]
    assert list(numbers) == [*parts, "all, at most", "free"]
    assert numbers["all, at most"] == pytest.approx(sum(numbers[part] for part in parts), abs=3)
    assert (numbers["weights, mapped"], numbers["process"], numbers["free"]) == (700, 250, 16000)


def test_more_than_the_model_was_made_for_is_allowed_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert plan(16000, n_ctx_train=2048, n_ctx=4096).n_ctx == 4096
    assert "more than the 2048 tokens" in caplog.text
