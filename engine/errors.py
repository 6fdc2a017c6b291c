"""Every exception the engine raises.

Each carries its facts as attributes; the message says what to do.

EngineError
├── GGUFError              the file is damaged or not GGUF; names the file and the field or tensor
├── UnsupportedModel       a sound file that this engine cannot run; names what, lists what it can
├── ConfigError            an engine setting has an impossible value
├── InvalidRequest         one request's own fault; `param` names the field
│   ├── ContextLengthExceeded
│   └── ChatTemplateError  the template refused the messages, or failed on them
├── QueueFull              too many requests wait already
├── TimedOut               the request's time was up before its first token
├── Replaced               a newer request of the same client made this waiting one needless
├── OutOfMemory            the machine has too little memory left for this request
├── EngineClosed           submitted after close()
└── EngineFailed           the engine thread died; every present and future request gets this
"""

from __future__ import annotations

from pathlib import Path


class EngineError(Exception):
    """Base of all exceptions that `engine` raises on purpose."""


class GGUFError(EngineError):
    """The model file is not a sound GGUF file."""

    def __init__(self, path: str | Path, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path = Path(path)
        self.what = what


class UnsupportedModel(EngineError):
    """The file is sound but asks for something this engine does not have."""

    def __init__(
        self, kind: str, name: str, supported: tuple[str, ...] = (), hint: str = ""
    ) -> None:
        message = f"unsupported {kind} '{name}'"
        if supported:
            message += f"; supported: {', '.join(supported)}"
        super().__init__(f"{message}; {hint}" if hint else message)
        self.kind = kind
        self.name = name
        self.supported = supported


class ConfigError(EngineError):
    """An engine setting has an impossible value."""


class InvalidRequest(EngineError):
    """A request that cannot be obeyed as it stands."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthExceeded(InvalidRequest):
    """The prompt leaves no room in the context for even one new token."""

    def __init__(self, n_prompt: int, n_ctx: int) -> None:
        super().__init__(
            f"the prompt has {n_prompt} tokens but the context holds {n_ctx}, one of them for the "
            "reply; shorten the prompt or start the server with a larger n_ctx",
            param="messages",
        )
        self.n_prompt = n_prompt
        self.n_ctx = n_ctx


class ChatTemplateError(InvalidRequest):
    """The model's chat template refused the messages or cannot be used."""

    def __init__(self, message: str) -> None:
        super().__init__(message, param="messages")


class QueueFull(EngineError):
    """As many requests wait as the configuration allows."""

    def __init__(self, n_waiting: int, retry_after_s: float = 1.0) -> None:
        super().__init__(
            f"{n_waiting} requests are waiting already; try again in {retry_after_s:.0f} s"
        )
        self.n_waiting = n_waiting
        self.retry_after_s = retry_after_s  # when a place may be free, by what was measured


class TimedOut(EngineError):
    """The request's time was up before the reply's first token."""

    def __init__(self, waited_s: float, n_prefilled: int, n_prompt: int) -> None:
        where = (
            f"{n_prefilled} of its {n_prompt} prompt tokens were read"
            if n_prefilled
            else "it was still in the queue"
        )
        super().__init__(f"the request's time was up after {waited_s:.1f} s, when {where}")
        self.waited_s = waited_s
        self.n_prefilled = n_prefilled
        self.n_prompt = n_prompt


class Replaced(EngineError):
    """A newer request of the same client made this one needless while it waited."""

    def __init__(self) -> None:
        super().__init__("a newer request of the same client replaced this one in the queue")


class OutOfMemory(EngineError):
    """The machine has too little memory left. Later there may be more."""


class EngineClosed(EngineError):
    """The engine was closed before or while this request ran."""


class EngineFailed(EngineError):
    """The engine thread stopped on an unexpected error and cannot go on."""
