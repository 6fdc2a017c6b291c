"""Which fields of other servers' APIs we know, and what we do when a request carries one.

A field that is not obeyed and not in these tables is unknown: ignored and named in the reply, or
refused, as `server.unknown_fields` says. Knows values, not types: what is obeyed is in the bodies.
"""

from __future__ import annotations

import reprlib
from typing import Any

from server.errors import ApiError

# Known and not supported -> the values that ask for nothing, or for a style at most, which a model
# may heed or not. Any other value is a 400.
# OpenAI's come first, then llama.cpp's, then vLLM's, mlx-lm's and Ollama's.
INACTIVE: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "verbosity": ("low", "medium", "high"),
    "web_search_options": (),
    "adaptive_target": (-1, -1.0),
    "grammar_lazy": (False,),
    "lora": ([],),
    "n_indent": (0,),
    "post_sampling_probs": (False,),
    "reasoning_budget_tokens": (-1,),
    "reasoning_control": (False,),
    "reasoning_format": ("auto", "deepseek"),
    "return_tokens": (False,),
    "sse_ping_interval": (),
    "t_max_predict_ms": (-1, 0),
    "thinking_budget_tokens": (-1,),
    "add_special_tokens": (),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "cache_salt": (),
    "chat_template": (),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1, 1.0),
    "parse_tool_calls": (True,),
    "include_reasoning": (True,),
    "prompt_logprobs": (),
    "return_token_ids": (False,),
    "skip_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "adapters": (),
    "draft_model": (),
    "role_mapping": (),
    "format": ("",),
    "options": ({},),
    "think": (),
}

# Known, and rightly without effect here: notes to a provider, hints that change speed alone, and
# settings that only shape a field of the table above. Chats are found by how they begin, so no slot
# need be named; old text is never dropped, so none need be kept; a prompt is read to its end, and a
# reply in OpenAI's shape has all its fields, in llama-server too.
WITHOUT_EFFECT = frozenset(
    {
        "metadata",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "adaptive_decay",
        "id_slot",
        "n_cache_reuse",
        "n_discard",
        "n_keep",
        "reasoning_budget_message",
        "request_id",
        "response_fields",
        "t_max_prompt_ms",
        "verbose",
        "num_draft_tokens",
    }
)

_HINTS = {
    "function_call": "use tool_choice",
    "functions": "use tools",
    "think": "use reasoning_effort, or chat_template_kwargs",
}


def unknown_fields(
    extra: dict[str, Any],
    inactive: dict[str, tuple[Any, ...]] = INACTIVE,
    without_effect: frozenset[str] = WITHOUT_EFFECT,
) -> list[str]:
    """Names in `extra` that no table knows. Raises: ApiError for one we cannot obey."""
    for name, value in extra.items():
        if name in inactive and not is_inactive(value, inactive[name]):
            hint = f"; {_HINTS[name]}" if name in _HINTS else ""
            raise ApiError(
                400,
                f"{name} = {reprlib.repr(value)} is not supported{hint}",
                param=name,
                code="unsupported_parameter",
            )
    return [name for name in extra if name not in inactive and name not in without_effect]


def is_inactive(value: Any, inactive: tuple[Any, ...]) -> bool:
    """Equal in type too: False == 0 in Python, but `logprobs: 0` asks for something."""
    return any(type(value) is type(idle) and value == idle for idle in inactive)
