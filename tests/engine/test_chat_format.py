"""How a model writes its replies, as its template tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gguf import TokenType

from engine.chat_format import ChatFormat
from engine.chat_template import CHATML, ChatTemplate
from engine.deltas import ContentDelta, ReasoningDelta
from engine.gguf_file import GGUFFile
from engine.tokenizer import StreamDecoder, Tokenizer
from tests.vocab_gguf import write_vocab_gguf

HI = [{"role": "user", "content": "what is <think> for?"}]
TOKENS = {
    "<|im_start|>": TokenType.CONTROL,
    "<|im_end|>": TokenType.CONTROL,
    "<think>": TokenType.CONTROL,
    "</think>": TokenType.CONTROL,
}
OPENING = CHATML.replace("assistant\n' }}{% endif", "assistant\n<think>\n' }}{% endif")
SWITCHED = (
    OPENING + "{% if enable_thinking is defined and not enable_thinking %}</think>{% endif %}"
)


@pytest.fixture
def model(tmp_path: Path) -> Any:
    def model(source: str) -> tuple[Tokenizer, ChatTemplate, ChatFormat]:
        path = tmp_path / "model.gguf"
        write_vocab_gguf(path, TOKENS, chat_template=source)
        gguf = GGUFFile(path)
        tokenizer = Tokenizer.from_gguf(gguf)
        template = ChatTemplate.from_gguf(gguf, tokenizer)
        return tokenizer, template, ChatFormat.of(template, tokenizer)

    return model


def test_the_template_opens_the_thinking(model: Any) -> None:
    tokenizer, template, chat_format = model(SWITCHED)
    assert chat_format.thinking_switch == "enable_thinking"
    for kwargs, delta in (({}, ReasoningDelta), ({"enable_thinking": False}, ContentDelta)):
        ids = tokenizer.encode_template(template.render(HI, template_kwargs=kwargs))
        parser = chat_format.parser(chat_format.prompt_tail(ids))
        assert parser.push("abc") == [delta("abc")]


def test_what_users_say_opens_nothing(model: Any) -> None:
    tokenizer, template, chat_format = model(CHATML)
    ids = tokenizer.encode_template(template.render(HI))
    parser = chat_format.parser(chat_format.prompt_tail(ids))
    assert parser.push("abc") == [ContentDelta("abc")]


def test_control_tokens_of_the_format_show(model: Any) -> None:
    tokenizer, _, chat_format = model(OPENING)
    control = tokenizer.vocabulary.control
    assert chat_format.visible_ids == {control["<think>"], control["</think>"]}
    decoder = StreamDecoder(tokenizer, visible_ids=chat_format.visible_ids)
    shown = [decoder.push(control[text]) for text in ("<think>", "</think>", "<|im_end|>")]
    assert shown == ["<think>", "</think>", ""]
