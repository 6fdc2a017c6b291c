"""Engine: the one thread that owns model, plan and cache, its queue, and the loop that serves
requests in bounded steps.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Ids
from typing import Any

from gguf.constants import LlamaFileType

from engine.chat import Chat, n_pages
from engine.chat_template import ChatTemplate
from engine.config import EngineConfig
from engine.cpus import count_cpus
from engine.errors import (
    ContextLengthExceeded,
    EngineClosed,
    EngineError,
    EngineFailed,
    InvalidRequest,
    QueueFull,
)
from engine.generation import (
    Event,
    Failed,
    Finished,
    FinishReason,
    Generation,
    Phase,
    Progress,
    Token,
)
from engine.gguf_file import GGUFFile
from engine.info import LoadProgress, ModelInfo
from engine.kv_cache import PagePool
from engine.model import Cancelled, Model
from engine.model_config import ModelConfig
from engine.sampler import SamplingParams
from engine.sequence import Sequence
from engine.tokenizer import Tokenizer
from engine.weights import Weights

log = logging.getLogger("rushlight.engine")

_DEFAULT_N_CTX = (
    4096  # more only when asked for: its cache would take memory that a small machine needs
)


class Engine:
    """A loaded model and the thread that runs it.

    Blocks while it loads; on_load hears how far it is. Usable from any thread, and as a context
    manager.

    Raises EngineError: the file is damaged or not supported, or a setting is impossible.
    """

    def __init__(
        self, config: EngineConfig, on_load: Callable[[LoadProgress], None] | None = None
    ) -> None:
        report = on_load or (lambda progress: None)
        self.config = config
        report(LoadProgress("opening model", 0, 1))
        self._gguf = GGUFFile(config.model_path)
        threading.Thread(target=self._gguf.prefetch, name="rushlight-prefetch", daemon=True).start()
        model_config = ModelConfig.from_gguf(self._gguf)
        weights = Weights.from_gguf(self._gguf, model_config)
        report(LoadProgress("reading tokenizer", 0, 1))
        self.tokenizer = Tokenizer.from_gguf(self._gguf, config.tokenizer_pre)
        self.chat_template = ChatTemplate.from_gguf(self._gguf, self.tokenizer)
        n_ctx = _choose_n_ctx(config, model_config)
        self.model = _model_info(self._gguf, model_config, n_ctx, self.tokenizer.n_vocab)
        self._model = Model(
            model_config,
            weights,
            max_rows=min(config.prefill_chunk, n_ctx),
            n_threads=_choose_n_threads(config),
            on_compile=lambda done, total: report(LoadProgress("compiling kernels", done, total)),
        )
        self._pool = PagePool(n_pages(n_ctx), self._model.page_bytes)
        self._chat = Chat(self._model, self._pool, n_ctx)

        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # something to do, or closing
        self._waiting: deque[Sequence] = deque()
        self._running: Sequence | None = None
        self._closing = False
        self._failure: EngineFailed | None = None
        self._thread = threading.Thread(target=self._serve, name="rushlight-engine", daemon=True)
        self._thread.start()

    # --- for every thread -----------------------------------------------------------------------

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a raw completion prompt. Special tokens' texts in it stay text."""
        return self.tokenizer.encode(text)

    def encode_chat(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: list[dict[str, Any]] | None = None,
        documents: list[dict[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a chat, through the model's template. Raises ChatTemplateError."""
        rendered = self.chat_template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            documents=documents,
            template_kwargs=template_kwargs,
        )
        return self.tokenizer.encode_template(rendered)

    def submit(
        self,
        prompt_ids: Ids[int],
        params: SamplingParams,
        on_event: Callable[[Event], None],
    ) -> Generation:
        """Queue a request. on_event hears Token events and then one Finished or Failed, from the
        engine thread.

        A request that is cancelled while it waits hears Finished from the thread that cancels it.

        Raises ContextLengthExceeded, InvalidRequest, QueueFull, EngineClosed or EngineFailed; then
        nothing was queued.
        """
        self._check(prompt_ids, params)
        generation = Generation(list(prompt_ids), params, on_event)
        sequence = Sequence(generation, self.tokenizer, self.model.n_ctx)
        generation._progress = lambda: self._progress(sequence)
        generation._on_cancel = lambda: self._cancel(sequence)
        with self._lock:
            if self._failure:
                raise self._failure
            if self._closing:
                raise EngineClosed("the engine is closed")
            if len(self._waiting) >= self.config.max_waiting and self._running is not None:
                raise QueueFull(len(self._waiting))
            self._waiting.append(sequence)
            self._changed.notify()
        return generation

    def generate(
        self, prompt: str | Ids[int], params: SamplingParams | None = None
    ) -> Iterator[Token | Finished]:
        """Run one request; yields Token events, then Finished. Closing the iterator cancels.

        prompt: text, or token ids. Raises what `submit` raises, and the error of a Failed.
        """
        ids = self.encode_prompt(prompt) if isinstance(prompt, str) else prompt
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        generation = self.submit(ids, params or SamplingParams(), events.put)
        try:
            while True:
                event = events.get()
                if isinstance(event, Failed):
                    raise event.error
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            generation.cancel()

    @property
    def n_waiting(self) -> int:
        """Requests in the queue, the running one not counted."""
        return len(self._waiting)

    def close(self, timeout_s: float = 2.0) -> None:
        """Cancel all requests and end the engine thread. Idempotent."""
        with self._lock:
            self._closing = True
            waiting, running = list(self._waiting), self._running
            self._changed.notify()
        for sequence in waiting:
            sequence.generation.cancel()
        if running:
            running.generation.cancel()
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self._model.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self, prompt_ids: Ids[int], params: SamplingParams) -> None:
        if not prompt_ids:
            raise InvalidRequest("the prompt is empty; it needs at least one token", "prompt")
        n_vocab = self.tokenizer.n_vocab
        for token_id in prompt_ids:
            if not 0 <= token_id < n_vocab:
                raise InvalidRequest(
                    f"token id {token_id} is outside the vocabulary (0..{n_vocab - 1})", "prompt"
                )
        for token_id in params.logit_bias:
            if not 0 <= token_id < n_vocab:
                raise InvalidRequest(
                    f"logit_bias: token id {token_id} is outside the vocabulary (0..{n_vocab - 1})",
                    "logit_bias",
                )
        if len(prompt_ids) >= self.model.n_ctx:
            raise ContextLengthExceeded(len(prompt_ids), self.model.n_ctx)

    def _progress(self, sequence: Sequence) -> Progress:
        with self._lock:
            ahead = self._waiting.index(sequence) if sequence in self._waiting else 0
            if sequence.phase is Phase.QUEUED and self._running is not None:
                ahead += 1
        return sequence.progress(ahead)

    def _cancel(self, sequence: Sequence) -> None:
        with self._lock:
            if sequence is self._running:
                self._model.batch.cancel()
                return
            if sequence not in self._waiting:
                return
            self._waiting.remove(sequence)
        sequence.finish(FinishReason.CANCELLED)

    # --- the engine thread ----------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while self._next_request():
                while self._running is not None:
                    self._step(self._running)
        except Exception as error:
            log.exception("the engine thread stopped")
            self._fail(EngineFailed(f"the engine stopped on an internal error: {error!r}"))

    def _next_request(self) -> bool:
        """Wait for a request and make it the running one. Returns False when the engine closes."""
        with self._lock:
            while not self._waiting and not self._closing:
                self._changed.wait()
            if not self._waiting:
                return False
            sequence = self._waiting.popleft()
            self._running = sequence
            self._model.batch.allow()
            if sequence.generation.cancelled:  # its flag is set before the lock is asked for
                self._model.batch.cancel()
        sequence.enter(Phase.PREFILL)
        sequence.n_cached = sequence.n_prefilled = self._chat.keep_prefix(sequence.prompt_ids)
        return True

    def _step(self, sequence: Sequence) -> None:
        """One bounded unit of work: a chunk of the prompt, or one token of the reply."""
        try:
            if sequence.n_prefilled < len(sequence.prompt_ids):
                self._prefill(sequence)
            else:
                self._decode(sequence)
        except Cancelled:
            sequence.finish(FinishReason.CANCELLED)
        except EngineError as error:  # this request's own: no token may be chosen
            sequence.fail(error)
        if sequence.phase is Phase.DONE:
            with self._lock:
                self._running = None

    def _prefill(self, sequence: Sequence) -> None:
        first, ids = sequence.n_prefilled, sequence.prompt_ids
        chunk = ids[first : first + self._model.max_rows]
        is_last = first + len(chunk) == len(ids)
        logits = self._chat.prefill(chunk, want_logits=is_last)
        sequence.n_prefilled += len(chunk)
        if logits is not None:
            sequence.enter(Phase.DECODE)
            sequence.next_id = sequence.choose(logits)

    def _decode(self, sequence: Sequence) -> None:
        assert sequence.next_id is not None, "a finished request is not stepped"
        sequence.next_id = sequence.choose(self._chat.next(sequence.next_id))

    def _fail(self, failure: EngineFailed) -> None:
        with self._lock:
            self._failure = failure
            victims = [*([self._running] if self._running else []), *self._waiting]
            self._running = None
            self._waiting.clear()
        for sequence in victims:
            if sequence.phase is not Phase.DONE:
                sequence.fail(failure)


def _choose_n_ctx(config: EngineConfig, model: ModelConfig) -> int:
    if config.n_ctx > model.n_ctx_train:
        log.warning(
            "n_ctx = %d is more than the %d tokens that the model was made for",
            config.n_ctx,
            model.n_ctx_train,
        )
    if config.n_ctx:
        log.info("n_ctx = %d: as set", config.n_ctx)
        return config.n_ctx
    n_ctx = min(model.n_ctx_train, _DEFAULT_N_CTX)
    log.info("n_ctx = %d: the model's own %d, at most %d", n_ctx, model.n_ctx_train, _DEFAULT_N_CTX)
    return n_ctx


def _choose_n_threads(config: EngineConfig) -> int:
    if config.n_threads:
        log.info("n_threads = %d: as set", config.n_threads)
        return config.n_threads
    cpus = count_cpus()
    log.info("n_threads = %d: %s", cpus.n, cpus.reason)
    return cpus.n


def _model_info(gguf: GGUFFile, config: ModelConfig, n_ctx: int, n_vocab: int) -> ModelInfo:
    number = gguf.get_int("general.file_type", -1)
    try:
        file_type = LlamaFileType(number).name.removeprefix("MOSTLY_").removeprefix("ALL_")
    except ValueError:
        largest = max(gguf.tensors.values(), key=lambda t: t.n_bytes)
        file_type = largest.type_name
    return ModelInfo(
        name=gguf.path.stem,
        path=gguf.path,
        architecture=config.architecture,
        n_params=sum(t.n_weights for t in gguf.tensors.values()),
        n_bytes=gguf.n_bytes,
        file_type=file_type,
        n_ctx=n_ctx,
        n_ctx_train=config.n_ctx_train,
        n_vocab=n_vocab,
        n_embd=config.n_embd,
        n_layer=config.n_layer,
    )
