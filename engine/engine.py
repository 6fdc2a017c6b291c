"""Engine: a model file made ready to answer. Ids become a queued request, events come back.

Text is model_text.py's, how requests run is worker.py's. Importing this brings Numba, for which
nobody should wait to hear that a file is wrong: model_file.py tells.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from engine.cache.chat import Chat
from engine.cache.chat_cache import ChatCache
from engine.cache.disk_cache import DiskCache
from engine.cache.kv_cache import PagePool
from engine.cache.resident_chats import NoRoom, least_bytes, short_tokens
from engine.cache.saved_chats import SavedChats
from engine.config import EngineConfig
from engine.errors import (
    ContextLengthExceeded,
    EngineClosed,
    EngineFailed,
    InvalidRequest,
    OutOfMemory,
)
from engine.files.fingerprint import fingerprint
from engine.info import LoadProgress, SavedChat
from engine.jit import cache_root
from engine.kernels.kv_page import LAYOUT
from engine.memory.cpus import CpuCount, count_cpus
from engine.memory.free_memory import free_memory, resident
from engine.memory.memory import Budget, Sizes, plan_memory
from engine.memory.memory_report import ChatMemory, MemoryReport
from engine.memory.pressure import Watch
from engine.memory.residency import resident_bytes
from engine.model.model import Model
from engine.model_file import ModelFile
from engine.model_text import ModelText
from engine.requests.early_ends import TimeLimits
from engine.requests.embedder import Cancelled, Embedder, pooling_of
from engine.requests.generation import (
    Estimate,
    Event,
    Failed,
    Finished,
    Generation,
    PromptScored,
    Token,
)
from engine.requests.policy import POLICIES
from engine.requests.request_options import DEFAULT_OPTIONS, RequestOptions
from engine.requests.scheduler import Scheduler
from engine.requests.worker import Worker
from engine.sampling.sampling_params import SamplingParams
from engine.templates.context import FittedChat, fit_chat, next_turn_ids

log = logging.getLogger("rushlight.engine")

_LONG_IDLE_S = 60.0  # after which other programs may have pushed weights out of memory


class Engine(ModelText):
    """A loaded model and the thread that runs it; what it makes of text comes from ModelText.

    Blocks while it loads; on_load hears how far it is. file: what `config` names, where it is open
    already; it is the engine's then. Usable from any thread, and as a context manager.

    budget: the memory that it may take.

    Raises EngineError: the file is damaged or not supported, or a setting is impossible.
    """

    def __init__(
        self,
        config: EngineConfig,
        on_load: Callable[[LoadProgress], None] | None = None,
        file: ModelFile | None = None,
    ) -> None:
        report = on_load or (lambda progress: None)
        self.config = config
        self.budget: Budget
        with contextlib.ExitStack() as undo:  # if anything below fails
            report(LoadProgress("opening model", 0, 1))
            self._file = file or ModelFile(config)
            undo.callback(self._file.close)
            self._gguf = self._file.gguf
            model_config = self._file.config
            self._file.read_ahead()
            report(LoadProgress("reading tokenizer", 0, 1))
            super().__init__(self._gguf, config.tokenizer_pre)
            report(LoadProgress("compiling kernels", 0, 1))

            def plan(model: Model) -> int:
                sizes = Sizes(
                    weights=self._gguf.n_bytes,
                    workspace=model.workspace.n_bytes,
                    process=resident().anonymous,
                    chat_bytes=lambda n_ctx: least_bytes(model, n_ctx),
                )
                self.budget = plan_memory(config, model_config.n_ctx_train, sizes, free_memory())
                return self.budget.n_ctx

            cpus = _cpus(config)
            most_rows = min(config.prefill_chunk, config.n_ctx or model_config.n_ctx_train)
            self._model = Model(
                model_config,
                self._file.weights,
                max_rows=max(most_rows, config.max_running),
                n_threads=cpus.n,
                n_cores=cpus.n_cores,
                on_compile=lambda done, total: report(
                    LoadProgress("compiling kernels", done, total)
                ),
                on_layout=plan,
                kv_type=config.kv_type,
            )
            undo.callback(self._model.close)
            n_ctx = self.budget.n_ctx
            self.model = self._file.info(n_ctx, self.tokenizer.n_vocab)
            if config.lock_weights:
                self._file.lock()
            self._pool = PagePool(self._model.page_bytes, self.budget.cache)
            self._new_chat: Callable[[], Chat] = lambda: Chat(self._model, self._pool, n_ctx)
            settings = (config.kv_type, LAYOUT, self._model.long_rope, *self._file.adapters_key)
            key = fingerprint(self._gguf, *settings)
            folder = Path(config.disk_folder or cache_root() / "chats")
            self._disk = DiskCache(folder, config.disk_bytes, key, self._model.groups)
            self._saved: SavedChats | None = None
            if config.saved_folder:
                self._saved = SavedChats(Path(config.saved_folder), key, self._model.groups)
            self._cache = ChatCache(self._new_chat, self._pool, short_tokens(n_ctx), self._disk)
            self._worker = Worker(
                self._model,
                self._cache,
                self._pool,
                self.tokenizer,
                Scheduler(POLICIES[config.policy], config.max_running, config.max_waiting),
                n_ctx,
                TimeLimits(config.queue_timeout_s, config.request_timeout_s, config.linger_s),
            )
            self._watch = Watch(free_memory, self._gguf.n_bytes, self._worker.relieve)
            self._embedder = Embedder(
                self._model,
                self._cache,
                self._worker,
                self._new_chat,
                pooling_of(self._gguf, model_config.architecture),
            )
            undo.pop_all()

    def fit_chat(self, messages: list[dict[str, Any]], n_reply: int, **template: Any) -> FittedChat:
        """A chat without so many of its oldest turns that n_reply tokens are left for the reply.

        template: as for `render_chat`. Raises ContextLengthExceeded, ChatTemplateError and
        InvalidRequest.
        """
        return fit_chat(
            messages, lambda left: self.render_chat(left, **template).ids, self.model.n_ctx, n_reply
        )

    def prepare_next_turn(self, messages: list[dict[str, Any]], **template: Any) -> None:
        """Read in idle time what the next turn is going to begin with, as far as that is not in the
        cache: many templates leave out the thinking of earlier turns, and the answer behind it
        would have to be read again when the user waits.

        messages: the chat with its last reply, as a client sends it back; template: as for
        `encode_chat`. Takes milliseconds; does nothing where the chat cannot be told to the model.
        """
        if not self.config.prepare_next_turn:
            return
        with contextlib.suppress(InvalidRequest):
            ids = next_turn_ids(messages, lambda chat: self.encode_chat(chat, **template))
            self._worker.prepare(ids)

    def submit(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        on_event: Callable[[Event], None],
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> Generation:
        """Queue a request. on_event hears Token events and then one Finished or Failed, from the
        engine thread.

        A request that is cancelled while it waits hears Finished from the thread that cancels it.
        One whose on_event raises is cancelled; the log has the error.

        Raises ContextLengthExceeded, InvalidRequest, QueueFull, EngineClosed or EngineFailed; then
        nothing was queued.
        """
        self._check(prompt_ids, params)
        if self._worker.idle_s > _LONG_IDLE_S:
            self._file.read_ahead()
        return self._worker.submit(Generation(list(prompt_ids), params, on_event, options))

    def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> Iterator[Token | Finished]:
        """Run one request; yields Token events, then Finished. Closing the iterator cancels.
        PromptScored events are for those who `submit`.

        prompt: text, or token ids. Raises what `submit` raises, and the error of a Failed.
        """
        ids = self.encode_prompt(prompt) if isinstance(prompt, str) else prompt
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        generation = self.submit(ids, params or SamplingParams(), events.put, options)
        return _until_finished(generation, events)

    def estimate(self, prompt_ids: Sequence[int], max_tokens: int | None = None) -> Estimate:
        """What a request would cost if it came now, by what was measured so far.

        max_tokens: of the reply; None = until the context is full. Raises what `submit` raises for
        a prompt that is impossible.
        """
        self._check(prompt_ids, SamplingParams())
        room = self.model.n_ctx - len(prompt_ids)
        return self._worker.estimate(prompt_ids, min(max_tokens or room, room))

    def embed(self, ids: Sequence[int], cancelled: threading.Event) -> list[float]:
        """The embedding of a text, n_embd numbers, not normalised. Blocks; other requests go on
        meanwhile. One at a time.

        Raises ContextLengthExceeded, InvalidRequest, OutOfMemory, EngineClosed, EngineFailed, and
        InvalidRequest once `cancelled` is set.
        """
        self._check(ids, SamplingParams())
        try:
            vector: list[float] = self._embedder.embed(ids, cancelled).tolist()
        except Cancelled:
            raise InvalidRequest("the request was cancelled") from None
        return vector

    @property
    def n_waiting(self) -> int:
        """Requests in the queue, the running ones not counted."""
        return self._worker.n_waiting

    @property
    def n_running(self) -> int:
        """Requests that are being answered."""
        return self._worker.n_running

    def memory(self) -> MemoryReport:
        """What memory is used for, now. Takes some milliseconds."""
        used = resident()
        weights = self._file.resident_bytes()
        kv = resident_bytes(self._pool.memory.address, self._pool.memory.n_bytes)
        kv = self._pool.used_bytes if kv is None else kv
        workspace = self._model.workspace.resident_bytes()
        return MemoryReport(
            weights=weights,
            libraries=used.file - weights,
            kv=kv,
            workspace=workspace,
            process=used.anonymous - kv - workspace,
            weights_mapped=self._gguf.n_bytes,
            weights_cached=self.weights_cached(),
            kv_limit=self._pool.limit_bytes,
            disk_cache=self._disk.n_bytes,
            chats=self._cache.memory(),
        )

    def weights_cached(self) -> int | None:
        """Bytes of the model's files in the page cache; None where the system does not tell."""
        return self._file.cached_bytes()

    def chats(self) -> tuple[ChatMemory, ...]:
        """The chats in memory: those that are answered now, then the most recently used first."""
        return tuple(chat for chat in self._cache.memory() if chat.n_tokens)

    def saved_chats(self) -> list[SavedChat]:
        """All in config.saved_folder, by name. Raises InvalidRequest when none is configured."""
        return self._saved_folder().all()

    def save_chat(self, n: int, name: str) -> SavedChat:
        """Save the n-th of `chats` under a name, in place of an older one of that name.

        Raises InvalidRequest, OSError, and what `submit` raises when the engine is over.
        """
        saved = self._saved_folder()
        ids, pages = self._worker.call(lambda: self._cache.lend(self._chat(n))).result()
        try:
            return saved.save(name, ids, self._cache.views(pages))
        finally:
            self._give_back(pages)

    def restore_chat(self, name: str) -> SavedChat:
        """Read a saved chat into memory, as the most recently used. Raises what `save_chat` does,
        and OutOfMemory.
        """
        saved = self._saved_folder()
        chat, header = saved.open(name)
        ids, held = header.ids.tolist(), (header.sizes > 0).tolist()
        if len(ids) > self.model.n_ctx:
            raise ContextLengthExceeded(len(ids), self.model.n_ctx)
        try:
            pages = self._worker.call_with_room(lambda: self._cache.take(len(ids), held))
        except NoRoom:
            raise OutOfMemory(f"there is no room for '{name}' beside running chats") from None
        try:
            saved.read(name, header, self._cache.views(pages))
        except BaseException:
            self._give_back(pages)
            raise
        self._worker.call(lambda: self._cache.add(ids, pages)).result()
        return chat

    def erase_saved_chat(self, name: str) -> SavedChat:
        """Delete a saved chat. Raises InvalidRequest, OSError."""
        return self._saved_folder().erase(name)

    def drop_chat(self, n: int) -> int:
        """Forget the n-th of `chats`. Returns its tokens. Raises what `save_chat` does."""

        def drop() -> int:
            chat = self._chat(n)
            n_tokens = len(chat.ids)
            if not self._cache.drop(chat):
                raise InvalidRequest(f"chat {n} is being answered", "id_slot")
            return n_tokens

        return self._worker.call(drop).result()

    @property
    def failure(self) -> EngineFailed | None:
        """Why the engine thread stopped for good; None while all is well."""
        return self._worker.failure

    def close(self, timeout_s: float = 2.0, store_s: float = 10.0) -> None:
        """Cancel all requests, end the engine's threads, store the chats on the disk and give the
        memory back. Idempotent.

        store_s: how long storing may take; the chats that were used least recently are lost then.
        """
        self._watch.close()
        if self._worker.close(timeout_s):
            self._cache.save(store_s)
            self._cache.clear()
            self._model.close()
        else:
            log.warning("the engine thread did not end within %.1f s", timeout_s)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _chat(self, n: int) -> Chat:
        chats = [chat for chat in self._cache if chat.ids]
        if not 0 <= n < len(chats):
            raise InvalidRequest(f"there is no chat {n}; {len(chats)} are in memory", "id_slot")
        return chats[n]

    def _give_back(self, pages: Sequence[int]) -> None:
        """Pages that this thread had for a while."""
        with contextlib.suppress(EngineClosed, EngineFailed):  # all pages are gone then
            self._worker.call(lambda: self._cache.give_back(pages))

    def _saved_folder(self) -> SavedChats:
        if self._saved is None:
            raise InvalidRequest("chats cannot be saved: cache.saved_folder is not set")
        return self._saved

    def _check(self, prompt_ids: Sequence[int], params: SamplingParams) -> None:
        if not prompt_ids:
            raise InvalidRequest("the prompt is empty; it needs at least one token", "prompt")
        self.check_ids(prompt_ids, "prompt")
        self.check_ids(params.logit_bias, "logit_bias", "logit_bias: ")
        self.check_ids(params.stop_token_ids, "stop_token_ids", "stop_token_ids: ")
        if len(prompt_ids) >= self.model.n_ctx:
            raise ContextLengthExceeded(len(prompt_ids), self.model.n_ctx)


def _until_finished(
    generation: Generation, events: queue.SimpleQueue[Event]
) -> Iterator[Token | Finished]:
    try:
        while True:
            event = events.get()
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, PromptScored):
                continue
            yield event
            if isinstance(event, Finished):
                return
    finally:
        generation.cancel()


def _cpus(config: EngineConfig) -> CpuCount:
    """Those that threads are for: none but as many as are set."""
    cpus = count_cpus()
    if config.n_threads:
        cpus = CpuCount(config.n_threads, "as set", n_cores=0)
    log.info("n_threads = %d: %s", cpus.n, cpus.reason)
    return cpus
