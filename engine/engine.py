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
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.cache.chat import Chat
from engine.cache.chat_cache import ChatCache
from engine.cache.disk_cache import DiskCache
from engine.cache.kv_cache import PagePool
from engine.cache.resident_chats import least_bytes, short_tokens
from engine.cache.saved_chats import SavedChats
from engine.config import EngineConfig
from engine.errors import ContextLengthExceeded, EngineFailed, InvalidRequest
from engine.files.fingerprint import fingerprint
from engine.info import LoadProgress
from engine.jit import cache_root
from engine.kernels.kv_page import LAYOUT
from engine.memory.cpus import CpuCount, count_cpus
from engine.memory.free_memory import free_memory, resident
from engine.memory.memory import Budget, Sizes, plan_memory
from engine.memory.memory_report import MemoryReport
from engine.memory.pressure import Watch
from engine.memory.residency import resident_bytes
from engine.model.model import Model
from engine.model_file import ModelFile
from engine.model_text import ModelText
from engine.requests.chats import Chats
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
from engine.templates.template_options import NO_OPTIONS, TemplateOptions
from engine.text.infill import FittedInfill, OtherFile, fit_infill

log = logging.getLogger("rushlight.engine")

_LONG_IDLE_S = 60.0  # after which other programs may have pushed weights out of memory


class Engine(ModelText):
    """A loaded model and the thread that runs it; what it makes of text comes from ModelText.

    Blocks while it loads; on_load hears how far it is. file: what `config` names, where it is open
    already; it is the engine's then. Usable from any thread, and as a context manager.

    budget: the memory that it may take; chats: those in memory, and those that were saved.

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
            self._file.read_ahead()
            report(LoadProgress("reading tokenizer", 0, 1))
            super().__init__(self._file.gguf, config.tokenizer_pre)
            report(LoadProgress("compiling kernels", 0, 1))
            self._model = self._compile(report)
            undo.callback(self._model.close)
            n_ctx = self.budget.n_ctx
            self.model = self._file.info(n_ctx, self.tokenizer.n_vocab)
            if config.lock_weights:
                self._file.lock()
            self._open_cache()
            self._worker = Worker(
                self._model,
                self._cache,
                self._pool,
                self.tokenizer,
                Scheduler(POLICIES[config.policy], config.max_running, config.max_waiting),
                n_ctx,
                TimeLimits(config.queue_timeout_s, config.request_timeout_s, config.linger_s),
            )
            self.chats = Chats(self._cache, self._worker, self._saved, n_ctx)
            pooling = pooling_of(self._file.gguf, self._file.config.architecture)
            self._embedder = Embedder(
                self._model, self._cache, self._worker, self._new_chat, pooling
            )
            self._watch = Watch(free_memory, self._file.gguf.n_bytes, self._worker.relieve)
            undo.pop_all()

    def _compile(self, report: Callable[[LoadProgress], None]) -> Model:
        """The model, its kernels compiled. Before that is begun, `budget` is made and kept to."""
        config, file = self.config, self._file
        n_ctx_train = file.config.n_ctx_train

        def choose_n_ctx(model: Model) -> int:
            sizes = Sizes(
                weights=file.gguf.n_bytes,
                workspace=model.workspace.n_bytes,
                process=resident().anonymous,
                chat_bytes=lambda n_ctx: least_bytes(model, n_ctx),
            )
            self.budget = plan_memory(config, n_ctx_train, sizes, free_memory())
            return self.budget.n_ctx

        cpus = _cpus(config)
        most_rows = min(config.prefill_chunk, config.n_ctx or n_ctx_train)
        return Model(
            file.config,
            file.weights,
            max_rows=max(most_rows, config.max_running),
            n_threads=cpus.n,
            n_cores=cpus.n_cores,
            on_compile=lambda done, total: report(LoadProgress("compiling kernels", done, total)),
            on_layout=choose_n_ctx,
            kv_type=config.kv_type,
        )

    def _open_cache(self) -> None:
        """Room for chats in memory, and their folders on the disk."""
        config, model, n_ctx = self.config, self._model, self.budget.n_ctx
        self._pool = PagePool(model.page_bytes, self.budget.cache)
        self._new_chat: Callable[[], Chat] = lambda: Chat(model, self._pool, n_ctx)
        settings = (config.kv_type, LAYOUT, model.long_rope, *self._file.adapters_key)
        key = fingerprint(self._file.gguf, *settings)
        folder = Path(config.disk_folder or cache_root() / "chats")
        self._disk = DiskCache(folder, config.disk_bytes, key, model.groups)
        self._saved: SavedChats | None = None
        if config.saved_folder:
            self._saved = SavedChats(Path(config.saved_folder), key, model.groups)
        self._cache = ChatCache(self._new_chat, self._pool, short_tokens(n_ctx), self._disk)

    def fit_chat(
        self,
        messages: list[dict[str, Any]],
        n_reply: int,
        template: TemplateOptions = NO_OPTIONS,
    ) -> FittedChat:
        """A chat without so many of its oldest turns that n_reply tokens are left for the reply.

        Raises ContextLengthExceeded, ChatTemplateError and InvalidRequest.
        """
        return fit_chat(
            messages, lambda left: self.encode_chat(left, template), self.model.n_ctx, n_reply
        )

    def fit_infill(self, before: str, after: str, files: Sequence[OtherFile]) -> FittedInfill:
        """`encode_infill`, beside other files that the model should know of; cut to what the
        context holds with a reply. Raises InvalidRequest when the model does not know how.
        """
        bos = self.tokenizer.encode_prompt("")
        tokens, n_most = self._infill_tokens, self.model.n_ctx - len(bos)
        fitted = fit_infill(tokens, self._encode_part, before, after, files, n_most)
        return replace(fitted, prompt_ids=[*bos, *fitted.prompt_ids])

    def prepare_next_turn(
        self, messages: list[dict[str, Any]], template: TemplateOptions = NO_OPTIONS
    ) -> None:
        """Read in idle time what the next turn is going to begin with, as far as that is not in the
        cache: many templates leave out the thinking of earlier turns, and the answer behind it
        would have to be read again when the user waits.

        messages: the chat with its last reply, as a client sends it back. Takes milliseconds; does
        nothing where the chat cannot be told to the model.
        """
        if not self.config.prepare_next_turn:
            return
        with contextlib.suppress(InvalidRequest):
            ids = next_turn_ids(messages, lambda chat: self.encode_chat(chat, template))
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

    def estimate(
        self, prompt_ids: Sequence[int], max_tokens: int | None = None, use_cache: bool = True
    ) -> Estimate:
        """What a request would cost if it came now, by what was measured so far.

        max_tokens: of the reply; None = until the context is full. Raises what `submit` raises for
        a prompt that is impossible.
        """
        self._check(prompt_ids, SamplingParams())
        room = self.model.n_ctx - len(prompt_ids)
        return self._worker.estimate(prompt_ids, min(max_tokens or room, room), use_cache)

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
            weights_mapped=self._file.gguf.n_bytes,
            weights_cached=self.weights_cached(),
            kv_limit=self._pool.limit_bytes,
            disk_cache=self._disk.n_bytes,
            chats=self._cache.memory(),
        )

    def weights_cached(self) -> int | None:
        """Bytes of the model's files in the page cache; None where the system does not tell."""
        return self._file.cached_bytes()

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
