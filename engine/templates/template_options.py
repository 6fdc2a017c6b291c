"""What a chat template gets beside the messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """tools, documents: as OpenAI spells them.

    template_kwargs: more variables for the template, such as enable_thinking.
    add_generation_prompt: whether the text ends where a reply begins.
    continue_last: it ends where the last message's text ends instead, which must be the
    assistant's: a reply goes on from there.
    """

    tools: Sequence[Mapping[str, Any]] = ()
    documents: Sequence[Mapping[str, Any]] = ()
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_last: bool = False


NO_OPTIONS: Final = TemplateOptions()
