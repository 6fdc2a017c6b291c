"""Chat templates for files that have none of their own."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

CHATML: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_3: Final = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}"
    "{{ message.content | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
_TOKENS: Final = {
    CHATML: {"<|im_start|>", "<|im_end|>"},
    LLAMA_3: {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
}


def default_template(special_tokens: Collection[str]) -> str:
    """The template that a vocabulary was plainly made for; '' when there is none."""
    fitting = (text for text, needed in _TOKENS.items() if needed.issubset(special_tokens))
    return next(fitting, "")
