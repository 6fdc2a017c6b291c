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

    def __init__(self, n_waiting: int) -> None:
        super().__init__(f"{n_waiting} requests are waiting already; try again later")
        self.n_waiting = n_waiting


class EngineClosed(EngineError):
    """The engine was closed before or while this request ran."""


class EngineFailed(EngineError):
    """The engine thread stopped on an unexpected error and cannot go on."""
