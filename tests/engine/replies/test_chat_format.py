"""How a model writes its replies, as its template tells."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gguf import TokenType

from engine.files.gguf_file import GGUFFile
from engine.replies.chat_format import ChatFormat
from engine.replies.thinking import MARKS
from engine.templates.chat_template import ChatTemplate
from engine.templates.default_templates import CHATML
from engine.templates.template_options import TemplateOptions
from engine.text.special_tokens import unshield
from engine.text.tokenizer import StreamDecoder, Tokenizer
from engine.tool_formats import TABLE
from engine.tool_formats.deltas import ContentDelta, ReasoningDelta, ToolCallDelta, ToolCallStart
from tests.vocab_gguf import write_vocab_gguf

SHARED = Path(__file__).resolve().parents[3].parent / "shared"
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
    assert chat_format.thinking_kwargs(False) == {"enable_thinking": False}
    for kwargs, delta in (({}, ReasoningDelta), ({"enable_thinking": False}, ContentDelta)):
        options = TemplateOptions(template_kwargs=kwargs)
        ids = tokenizer.encode_template(template.render(HI, options))
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


FUNCTIONARY = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ '>>>all\n' if m.role == 'assistant' }}"
    "{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n>>>{% endif %}"
)


@pytest.mark.parametrize("n", [1, 3, 100])
def test_the_template_opens_a_call(model: Any, n: int) -> None:
    """Functionary 3.2: every reply names who it is for, the first of them behind the prompt."""
    tokenizer, template, chat_format = model(FUNCTIONARY)
    tail = chat_format.prompt_tail(tokenizer.encode_template(template.render(HI)))

    def read(reply: str, tools: bool) -> list[Any]:
        parser = chat_format.parser(tail, tools)
        pieces = [reply[i : i + n] for i in range(0, len(reply), n)]
        return [delta for piece in pieces for delta in parser.push(piece)] + parser.finish()

    def text(deltas: list[Any]) -> str:
        return "".join(d.text for d in deltas if isinstance(d, ContentDelta))

    assert text(read("all\nHello >>> you.", False)) == "Hello >>> you."
    called = read('all\nI look.>>>f\n{"a": 1}>>>g\n{}', True)
    assert text(called) == "I look."
    assert [d.name for d in called if isinstance(d, ToolCallStart)] == ["f", "g"]


# --- real templates: what they print of a reply is read back --------------------------------------

REAL = sorted((SHARED / "templates").glob("*.jinja"))
NO_CALLS = {"SmolLM3", "gemma-2", "rwkv", "Phi-3.5"}  # print none; a plain form is used
NO_REASONING = {
    "GigaChat", "Hermes", "LFM2-8B", "MiMo", "MiniMax-M1", "Mistral", "mistral", "Qwen2.5", "QwQ",
    "Qwen3-Coder", "R1", "r1", "firefunction", "granite", "functionary", "Llama-3",
    "moonshotai-Kimi-K2", *NO_CALLS,
}  # fmt: skip
ONE_CALL = {"GigaChat", "Llama-3.", "gpt-oss"}
SWITCHES = {
    "enable_thinking": {
        "Bielik", "command-r7b", "GLM", "SmolLM3", "Nemotron", "QwQ", "Qwen3-0", "Reka", "Spark",
        "Distill-Qwen", "V3.2", "V4", "gemma-4", "ling", "rwkv", "Laguna",
    },
    "thinking": {"granite-3", "Kimi-K3"},
    "thinking_mode": {"MiniMax-M3"},
    "reasoning_effort": {"Hy3", "Cohere2MoE"},
}  # fmt: skip
PARAMETERS = {"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}
TOOLS = [
    {"type": "function", "function": {"name": "f", "description": "does", "parameters": PARAMETERS}}
]
ARGUMENTS = [{"s": 'a "b"\n <c> é🦙', "n": 3}, {"s": "5"}]


def is_one_of(path: Path, names: set[str]) -> bool:
    return any(name in path.stem for name in names)


def real_model(path: Path) -> tuple[ChatTemplate, ChatFormat]:
    """A model with this template, and with all marks of all formats as control tokens."""
    marks = {mark for f in TABLE for mark in f.marks} | {mark for m in MARKS for mark in m.all}
    vocabulary = SimpleNamespace(control={mark: i for i, mark in enumerate(sorted(marks))})
    template = ChatTemplate(path.read_text("utf-8"), {"bos_token": "<s>", "eos_token": "</s>"})
    assert template.error == ""
    tokenizer: Any = SimpleNamespace(vocabulary=vocabulary)
    return template, ChatFormat.of(template, tokenizer)


def reply_in(rendered: str, turn_start: str) -> str:
    """What the assistant says after USER."""
    said = rendered.rpartition("USER")[2]
    return said.partition(turn_start)[2] if turn_start in said else said


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
@pytest.mark.parametrize("n", [1, 7, 100_000])
def test_printed_calls_are_read_back(path: Path, n: int) -> None:
    template, chat_format = real_model(path)
    arguments = ARGUMENTS[:1] if is_one_of(path, ONE_CALL) else ARGUMENTS
    calls = [
        {"id": f"call0000{i}", "type": "function", "function": {"name": "f", "arguments": given}}
        for i, given in enumerate(arguments)
    ]
    call = {"role": "assistant", "content": None, "tool_calls": calls, "reasoning_content": "HM"}
    chat = [{"role": "user", "content": "USER"}, call]
    on = {"enable_thinking": True, "thinking": True}
    options = TemplateOptions(TOOLS, template_kwargs=on, add_generation_prompt=False)
    rendered = template.render(chat, options)
    reply = reply_in(unshield(rendered), chat_format._turn_start)
    if "Apriel" in path.stem:  # whose prompt opens the thinking
        reply = "Here are my reasoning steps:\n" + reply
    parser = chat_format.parser("", TOOLS)
    deltas = [d for i in range(0, len(reply), n) for d in parser.push(reply[i : i + n])]
    deltas += parser.finish()
    names = [d.name for d in deltas if isinstance(d, ToolCallStart)]
    texts = [""] * len(names)
    for delta in deltas:
        if isinstance(delta, ToolCallDelta):
            texts[delta.index] += delta.arguments
    assert names == ["f"] * len(arguments)
    assert [json.loads(text) for text in texts] == arguments
    reasoning = "".join(d.text for d in deltas if isinstance(d, ReasoningDelta))
    if not is_one_of(path, NO_REASONING):
        assert reasoning == "HM"


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_thinking_is_turned_off_and_on(path: Path) -> None:
    template, chat_format = real_model(path)
    expected = [name for name, stems in SWITCHES.items() if is_one_of(path, stems)]
    assert list(chat_format.thinking_kwargs(True)) == expected
    chat = [{"role": "user", "content": "Say <think>."}]

    def reads_as(on: bool) -> type:
        kwargs = chat_format.thinking_kwargs(on)
        prompt = template.render(chat, TemplateOptions(template_kwargs=kwargs))
        return type(chat_format.parser(unshield(prompt)).push("x")[0])

    off, on = reads_as(False), reads_as(True)
    if expected:
        assert off is ContentDelta
    else:
        assert on is off
