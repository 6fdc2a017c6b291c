"""OpenAI's surface on a real model through the real `openai` library: what a scripted engine cannot
show. Cases are those of public bug reports; a 135M model has to be forced to most of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

from engine import Engine
from tests.model_files import SMOLLM2, needs
from tests.server.conftest import Running

pytestmark = [pytest.mark.model, needs(SMOLLM2)]

HELLO: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "unit": {"enum": ["C", "F"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
    },
    "required": ["city", "unit", "days"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": PARAMETERS}}
    for name in ("weather", "history")
]


@pytest.fixture(scope="module")
def model() -> Path:
    return SMOLLM2


@pytest.fixture
def engine(running: Running) -> Engine:
    engine: Engine = running.loader.engine()
    return engine


def chat(client: openai.OpenAI, **more: Any) -> Any:
    asked = {"model": "any", "messages": HELLO, "temperature": 0, "max_tokens": 60, **more}
    return client.chat.completions.create(**asked)


def text(client: openai.OpenAI, prompt: Any, **more: Any) -> Any:
    asked = {"model": "any", "prompt": prompt, "temperature": 0, "max_tokens": 8, **more}
    return client.completions.create(**asked)


def enum_of(value: str) -> Any:
    """Forces a reply: the JSON string."""
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [value]}}}


# --- constrained replies ----------------------------------------------------------------------


@pytest.mark.parametrize("value", ["🦙 歪 👩‍👧", "UNO DUE TRE", 'quo"te\n\\'])
def test_a_forced_text_comes_whole_and_in_pieces(client: openai.OpenAI, value: str) -> None:
    whole = chat(client, response_format=enum_of(value)).choices[0]
    assert json.loads(whole.message.content) == value
    assert whole.finish_reason == "stop"
    stream = chat(client, response_format=enum_of(value), stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(pieces) == whole.message.content
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (["beta gamma"], '"alpha '),
        ("gamma", '"alpha beta '),
        (["alpha"], '"'),
        (["gamma", "beta gamma"], '"alpha '),
        (["Paris"], '"alpha beta gamma delta"'),  # of the prompt only
        (['delta"AAAA'], '"alpha beta gamma delta"'),
        ([], '"alpha beta gamma delta"'),
        ([""], '"alpha beta gamma delta"'),
    ],
)
def test_stop_strings(client: openai.OpenAI, stop: Any, expected: str) -> None:
    forced = enum_of("alpha beta gamma delta")
    whole = chat(client, response_format=forced, stop=stop).choices[0]
    assert (whole.message.content, whole.finish_reason) == (expected, "stop")
    chunks = list(chat(client, response_format=forced, stop=stop, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_white_space_does_not_run_on(client: openai.OpenAI) -> None:
    ids = [32, 198, 197, 216]  # newline, tab and spaces of this vocabulary, and one that is none
    for kind in ({"type": "json_object"}, enum_of("x")):
        reply = chat(
            client,
            response_format=kind,
            max_tokens=200,
            temperature=1,
            seed=1,
            logit_bias={str(i): 20 for i in ids},
        ).choices[0]
        if reply.finish_reason == "stop":
            json.loads(reply.message.content)
            assert reply.message.content == reply.message.content.rstrip()
        assert " " * 17 not in (reply.message.content or "").split('"')[0]


# --- tools ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"weather", "history"}),
        ({"type": "function", "function": {"name": "history"}}, {"history"}),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_forced_calls(client: openai.OpenAI, choice: Any, names: set[str], seed: int) -> None:
    asked = {"tools": TOOLS, "tool_choice": choice, "temperature": 1, "seed": seed}
    asked |= {"parallel_tool_calls": False, "max_tokens": 100}
    reply = chat(client, **asked).choices[0]
    [call] = reply.message.tool_calls
    assert call.function.name in names
    jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)
    assert reply.finish_reason == "tool_calls"
    with client.chat.completions.stream(model="any", messages=HELLO, **asked) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    [streamed] = final.message.tool_calls
    assert streamed.function.arguments == call.function.arguments
    assert streamed.function.name == call.function.name


def test_a_result_goes_back_to_the_model(client: openai.OpenAI) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    told = chat(
        client,
        messages=[
            *HELLO,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "It is sunny, 31 C."},
        ],
        tools=TOOLS,
        tool_choice="none",
    )
    assert "sunny" in told.choices[0].message.content


def test_no_calls_where_none_are_wanted(client: openai.OpenAI) -> None:
    reply = chat(client, tools=TOOLS, tool_choice="none").choices[0]
    assert not reply.message.tool_calls and reply.finish_reason in ("stop", "length")


# --- choices, seeds, biases -------------------------------------------------------------------


def test_seeds(client: openai.OpenAI) -> None:
    def say(**more: Any) -> list[str]:
        reply = chat(client, temperature=1, max_tokens=24, **more)
        return [choice.message.content for choice in reply.choices]

    assert len({say()[0] for _ in range(4)}) > 1
    assert len({say(seed=42)[0] for _ in range(3)}) == 1
    assert say(seed=42) != say(seed=7)
    first, second = say(seed=42, n=2), say(seed=42, n=2)
    assert first == second and first[0] != first[1]
    assert first[0] == say(seed=42)[0]


def test_biases(client: openai.OpenAI, engine: Engine) -> None:
    [comma] = engine.encode_prompt(",")
    forced = chat(client, logit_bias={str(comma): 100}, max_tokens=5, logprobs=True).choices[0]
    assert {item.token for item in forced.logprobs.content} == {","}
    plain = chat(client, max_tokens=1, logprobs=True, top_logprobs=2).choices[0].logprobs
    best, second = plain.content[0].top_logprobs
    assert plain.content[0].token == best.token
    assert best.logprob > second.logprob
    with pytest.raises(openai.BadRequestError, match="logit_bias"):
        chat(client, logit_bias={"hello": 1})


@pytest.mark.parametrize(
    ("token", "ends"),
    [("<|im_end|>", True), ("<|endoftext|>", True), ("<|im_start|>", False)],
)
def test_every_end_ends_and_a_beginning_does_not(
    client: openai.OpenAI, engine: Engine, token: str, ends: bool
) -> None:
    """Ends of a turn and of a text, in chats and in texts; none of them shows."""
    bias = {str(engine.tokenizer.vocabulary.control[token]): 100}
    for choice, usage in (
        ((reply := chat(client, logit_bias=bias, max_tokens=8)).choices[0], reply.usage),
        ((reply := text(client, "A", logit_bias=bias, max_tokens=8)).choices[0], reply.usage),
    ):
        said = choice.message.content if hasattr(choice, "message") else choice.text
        assert (said or "") == ""
        assert choice.finish_reason == ("stop" if ends else "length")
        assert usage.completion_tokens <= 1 if ends else usage.completion_tokens == 8


def test_a_limit_inside_a_character_shows_no_half_of_it(client: openai.OpenAI) -> None:
    forced = enum_of("🦙" * 3)
    for n in range(1, 8):  # 🦙 is several tokens
        whole = chat(client, response_format=forced, max_tokens=n)
        stream = chat(client, response_format=forced, max_tokens=n, stream=True)
        said = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert said == whole.choices[0].message.content
        assert '"🦙🦙🦙"'.startswith(said)
        assert (whole.usage.completion_tokens, whole.choices[0].finish_reason) == (n, "length")


def test_the_bytes_of_logprobs_join_to_the_text(client: openai.OpenAI) -> None:
    reply = chat(client, response_format=enum_of("🦙 é歪"), logprobs=True, top_logprobs=2)
    choice = reply.choices[0]
    items = choice.logprobs.content
    assert b"".join(bytes(item.bytes) for item in items).decode() == choice.message.content
    assert all(len(item.top_logprobs) == 2 for item in items)


def test_the_limit_is_exact(client: openai.OpenAI) -> None:
    for n in (1, 5, 20):
        reply = chat(
            client, max_completion_tokens=n, max_tokens=None, extra_body={"ignore_eos": True}
        )
        assert reply.usage.completion_tokens == n
        assert reply.choices[0].finish_reason == "length"


# --- prompts ----------------------------------------------------------------------------------


def test_prompts_of_every_form_say_the_same(client: openai.OpenAI, engine: Engine) -> None:
    ids = engine.encode_prompt("The capital of France is")
    reply = text(client, ["The capital of France is", ids, "One, two,"], logprobs=0)
    a, b, c = reply.choices
    assert a.text == b.text and " Paris" in a.text
    assert a.logprobs.token_logprobs == b.logprobs.token_logprobs
    assert "three" in c.text
    assert "".join(a.logprobs.tokens) == a.text
    for offset, token in zip(a.logprobs.text_offset, a.logprobs.tokens, strict=True):
        assert a.text[offset:].startswith(token)
    with pytest.raises(openai.BadRequestError, match="vocabulary"):
        text(client, [[engine.model.n_vocab]])


def test_an_echo_has_the_prompts_logprobs(client: openai.OpenAI, engine: Engine) -> None:
    """They are those that the same tokens get as a reply."""
    prompt = "The capital of France is"
    replied = text(client, prompt, logprobs=2, max_tokens=6).choices[0]
    again = text(client, prompt + replied.text, logprobs=2, max_tokens=1, echo=True).choices[0]
    assert again.text.startswith(prompt + replied.text)
    columns, n = again.logprobs, len(replied.logprobs.tokens)
    n_prompt = len(engine.encode_prompt(prompt))
    assert columns.token_logprobs[0] is None and columns.top_logprobs[0] is None
    same = slice(n_prompt, n_prompt + n)
    assert columns.tokens[same] == replied.logprobs.tokens
    assert columns.token_logprobs[same] == pytest.approx(replied.logprobs.token_logprobs, abs=0.05)
    assert "".join(columns.tokens) == again.text
    for offset, token in zip(columns.text_offset, columns.tokens, strict=True):
        assert again.text[offset:].startswith(token)


def test_a_raw_prompt_may_hold_special_tokens(client: openai.OpenAI, engine: Engine) -> None:
    """As editors and frontends write the chat, or a gap to fill, by themselves."""
    asked = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    reply = text(client, asked, max_tokens=12, logprobs=0, echo=True)
    ids = engine.encode_prompt(asked)
    control = engine.tokenizer.vocabulary.control
    assert ids.count(control["<|im_start|>"]) == 2 and ids.count(control["<|im_end|>"]) == 1
    assert reply.usage.prompt_tokens == len(ids)
    [choice] = reply.choices
    assert choice.text.startswith(asked) and "Paris" in choice.text
    assert "".join(choice.logprobs.tokens).startswith(asked)
    assert choice.logprobs.text_offset[:2] == [0, len("<|im_start|>")]


def test_a_begun_reply_goes_on(client: openai.OpenAI) -> None:
    begun = {"role": "assistant", "content": "The capital of France is"}
    ask = {"role": "user", "content": "What is the capital of France?"}
    reply = chat(client, messages=[ask, begun], max_tokens=4).choices[0].message.content
    assert reply.startswith(" Paris")


def test_no_fill_in_the_middle_without_its_tokens(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        text(client, "def f(", suffix="return x")
    assert refused.value.param == "suffix"


@pytest.mark.parametrize(
    ("schema", "param"),
    [
        ({"$ref": "#/$defs/missing"}, "response_format.json_schema.schema"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "response_format.json_schema.schema"),
        ({"type": "array", "uniqueItems": True}, "response_format.json_schema.schema"),
    ],
)
def test_what_cannot_be_enforced_is_refused(client: openai.OpenAI, schema: Any, param: str) -> None:
    kind = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(openai.BadRequestError) as refused:
        chat(client, response_format=kind)
    assert refused.value.param == param
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    with pytest.raises(openai.BadRequestError) as refused:
        chat(client, tools=[tool], tool_choice="required")
    assert refused.value.param == "tools"
