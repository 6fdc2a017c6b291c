"""Tokens in, tokens out: loads a GGUF model and generates text with it. No HTTP here.

    from engine import Engine, EngineConfig, SamplingParams

    with Engine(EngineConfig("model.gguf")) as engine:
        prompt = engine.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
        for event in engine.generate(prompt, SamplingParams(temperature=0)):
            print(event.text, end="")

What is named here is the public API; nothing else is imported from outside.
"""

from typing import TYPE_CHECKING, Any

from engine.config import EngineConfig, LoraFile
from engine.errors import (
    ChatTemplateError,
    ConfigError,
    ContextLengthExceeded,
    EngineClosed,
    EngineError,
    EngineFailed,
    GGUFError,
    InvalidRequest,
    OutOfMemory,
    QueueFull,
    Replaced,
    TimedOut,
    UnsupportedModel,
)
from engine.info import LoadProgress, ModelInfo, RenderedChat, SavedChat
from engine.memory.memory_report import ChatMemory, MemoryReport
from engine.replies.reply_rules import ReplyRules
from engine.requests.generation import (
    Difference,
    Estimate,
    Event,
    Failed,
    Finished,
    FinishReason,
    Generation,
    Phase,
    Progress,
    PromptScored,
    Timings,
    Token,
)
from engine.requests.request_options import RequestOptions
from engine.sampling.sampling_params import INFILL, SAMPLERS, SamplingParams
from engine.templates.context import FittedChat
from engine.templates.template_options import TemplateOptions
from engine.text.infill import FittedInfill, OtherFile
from engine.tool_formats.deltas import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallStart,
)

if TYPE_CHECKING:
    from engine.engine import Engine
    from engine.grammar.grammar import Grammar
    from engine.model_file import ModelFile

__all__ = [
    "INFILL",
    "SAMPLERS",
    "ChatMemory",
    "ChatTemplateError",
    "ConfigError",
    "ContentDelta",
    "ContextLengthExceeded",
    "Delta",
    "Difference",
    "Engine",
    "EngineClosed",
    "EngineConfig",
    "EngineError",
    "EngineFailed",
    "Estimate",
    "Event",
    "Failed",
    "FinishReason",
    "Finished",
    "FittedChat",
    "FittedInfill",
    "GGUFError",
    "Generation",
    "Grammar",
    "InvalidRequest",
    "LoadProgress",
    "LoraFile",
    "MemoryReport",
    "ModelFile",
    "ModelInfo",
    "OtherFile",
    "OutOfMemory",
    "Phase",
    "Progress",
    "PromptScored",
    "QueueFull",
    "ReasoningDelta",
    "RenderedChat",
    "Replaced",
    "ReplyRules",
    "RequestOptions",
    "SamplingParams",
    "SavedChat",
    "TemplateOptions",
    "TimedOut",
    "Timings",
    "Token",
    "ToolCallDelta",
    "ToolCallStart",
    "UnsupportedModel",
]


def __getattr__(name: str) -> Any:
    """What is slow to import comes when it is asked for: an engine brings Numba, a file NumPy."""
    if name == "Engine":
        from engine.engine import Engine

        return Engine
    if name == "Grammar":
        from engine.grammar.grammar import Grammar

        return Grammar
    if name == "ModelFile":
        from engine.model_file import ModelFile

        return ModelFile
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
