"""The fields of OpenAI's completions on real models, through the real `openai` library: what
test_openai_surface.py, which goes by public bug reports, leaves out.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from typing import Any

import jsonschema
import openai
import pydantic
import pytest

pytestmark = pytest.mark.model

ASK: Any = {"role": "user", "content": "What is the weather in Paris?"}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
NAMES = ("weather", "history")
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": PARAMETERS, "strict": True}}
    for name in NAMES
]
ONLY_HISTORY = [{"type": "function", "function": {"name": "history"}}]


def chat(client: openai.OpenAI, *messages: Any, **more: Any) -> Any:
    asked = {"model": "any", "messages": list(messages or [ASK]), "max_tokens": 40, **more}
    return client.chat.completions.create(**asked)


def said(reply: Any) -> str:
    return str(reply.choices[0].message.content)


def text(client: openai.OpenAI, prompt: Any, **more: Any) -> Any:
    return client.completions.create(**{"model": "any", "prompt": prompt, "max_tokens": 8, **more})


# --- messages ---------------------------------------------------------------------------------


def test_a_developer_is_the_system(client: openai.OpenAI) -> None:
    rule = "Answer with one word."
    replies = [
        chat(client, {"role": role, "content": rule}, ASK) for role in ("system", "developer")
    ]
    assert said(replies[0]) == said(replies[1])
    assert replies[0].usage.prompt_tokens == replies[1].usage.prompt_tokens
    assert replies[0].usage.prompt_tokens > chat(client, max_tokens=1).usage.prompt_tokens - 40


def test_content_in_parts(client: openai.OpenAI) -> None:
    part = {"type": "text", "text": ASK["content"]}
    parts = chat(client, {"role": "user", "content": [part]})
    assert said(parts) == said(chat(client))
    two = chat(client, {"role": "user", "content": [part, part]}, max_tokens=1)
    joined = chat(
        client, {"role": "user", "content": "\n".join([ASK["content"]] * 2)}, max_tokens=1
    )
    assert two.usage.prompt_tokens == joined.usage.prompt_tokens
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    with pytest.raises(openai.BadRequestError, match="image_url"):
        chat(client, {"role": "user", "content": [part, image]})


def test_begun_replies(client: openai.OpenAI) -> None:
    ask = {"role": "user", "content": "What is the capital of France?"}
    begun = {"role": "assistant", "content": "The capital of France is"}
    going_on = {"continue_final_message": True, "add_generation_prompt": False}
    assert said(chat(client, ask, begun, max_tokens=4, extra_body=going_on)).startswith(" Paris")
    new_turn = {"continue_final_message": False, "add_generation_prompt": True}
    reply = said(chat(client, ask, begun, max_tokens=4, extra_body=new_turn))
    assert not reply.startswith(" Paris")


def test_effort_and_template_variables(client: openai.OpenAI) -> None:
    """Neither model thinks: effort is a hint that they do not heed."""
    plain = said(chat(client, max_tokens=8))
    for effort in ("none", "minimal", "high"):
        assert said(chat(client, reasoning_effort=effort, max_tokens=8)) == plain
    extra = {"chat_template_kwargs": {"enable_thinking": False}}
    assert said(chat(client, extra_body=extra, max_tokens=8)) == plain


# --- constrained replies ----------------------------------------------------------------------


def test_formats_of_replies(client: openai.OpenAI) -> None:
    class City(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=20)
        country: str = pydantic.Field(max_length=20)

    about: Any = {"role": "user", "content": "Paris is in France."}
    parsed = client.chat.completions.parse(
        model="any", messages=[about], response_format=City, max_tokens=80
    )
    city = parsed.choices[0].message.parsed
    assert city and city.name == "Paris"
    assert said(chat(client, response_format={"type": "text"})) == said(chat(client))
    reply = chat(client, response_format={"type": "json_object"}, max_tokens=150)
    if reply.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(said(reply)), dict)
    assert said(reply).lstrip().startswith("{")


@pytest.mark.parametrize(
    ("field", "pattern"),
    [
        ({"grammar": 'root ::= ("yes" | "no") "!"'}, r"(yes|no)!"),
        ({"grammar": 'start: /[a-f]{2}/ "-" DIGIT\nDIGIT: /[0-9]/'}, r"[a-f]{2}-[0-9]"),
        ({"guided_regex": r"[0-9]{3} C"}, r"[0-9]{3} C"),
        ({"guided_choice": ["sun", "rain"]}, r"sun|rain"),
        ({"structured_outputs": {"regex": "[A-Z]{4}"}}, r"[A-Z]{4}"),
    ],
)
def test_grammars(client: openai.OpenAI, field: Any, pattern: str) -> None:
    whole = chat(client, extra_body=field)
    assert re.fullmatch(pattern, said(whole)) and whole.choices[0].finish_reason == "stop"
    continued = text(client, "The weather is", extra_body=field)
    assert re.fullmatch(pattern, continued.choices[0].text)


# --- tools ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", set(NAMES)),
        ({"type": "function", "function": {"name": "history"}}, {"history"}),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": ONLY_HISTORY},
            },
            {"history"},
        ),
    ],
)
@pytest.mark.parametrize("parallel", [False, True])
def test_forced_calls(client: openai.OpenAI, choice: Any, names: set[str], parallel: bool) -> None:
    asked = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": parallel}
    reply = chat(client, **asked, max_tokens=150).choices[0]
    calls = reply.message.tool_calls
    assert calls and (parallel or len(calls) == 1)
    assert len({call.id for call in calls}) == len(calls)
    for call in calls if reply.finish_reason == "tool_calls" else ():
        assert call.function.name in names
        jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)
    chunks = [c.choices[0] for c in chat(client, **asked, max_tokens=150, stream=True)]
    deltas = [delta for chunk in chunks for delta in chunk.delta.tool_calls or []]
    for index, call in enumerate(calls):
        of_call = [delta for delta in deltas if delta.index == index]
        assert [d.function.name for d in of_call if d.function.name] == [call.function.name]
        assert len([d.id for d in of_call if d.id]) == 1
        pieces = [d.function.arguments or "" for d in of_call]
        assert "".join(pieces) == call.function.arguments
    assert chunks[-1].finish_reason == reply.finish_reason


@pytest.mark.parametrize(
    "choice",
    [
        "auto",
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": TOOLS[:1]}},
    ],
)
def test_calls_by_itself(client: openai.OpenAI, is_qwen: bool, choice: Any) -> None:
    if isinstance(choice, dict):
        choice["allowed_tools"]["tools"] = [{"type": "function", "function": {"name": "weather"}}]
    reply = chat(client, tools=TOOLS, tool_choice=choice).choices[0]
    for call in reply.message.tool_calls or ():
        assert (call.function.name, json.loads(call.function.arguments)) == (
            "weather",
            {"city": "Paris"},
        )
    assert bool(reply.message.tool_calls) == is_qwen
    assert (reply.finish_reason == "tool_calls") == is_qwen


# --- choices, streams, counts -----------------------------------------------------------------


def test_usage_timings_and_progress_in_streams(client: openai.OpenAI) -> None:
    plain = list(chat(client, stream=True))
    assert all(chunk.usage is None for chunk in plain) and all(chunk.choices for chunk in plain)
    *chunks, last = chat(client, stream=True, stream_options={"include_usage": True})
    assert last.choices == [] and all(chunk.usage is None for chunk in chunks)
    whole = chat(client)
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == said(whole)
    for final in (last, whole):
        timings = final.model_extra["timings"]
        assert timings["predicted_n"] == final.usage.completion_tokens
        assert timings["prompt_n"] + timings["cache_n"] == final.usage.prompt_tokens
        assert timings["predicted_ms"] > 0


def test_several_choices(client: openai.OpenAI) -> None:
    asked: Any = {"temperature": 1.0, "seed": 3, "n": 2}
    reply = text(client, ["Once upon a time", "One, two,"], **asked)
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert reply.choices[0].text != reply.choices[1].text
    pieces = ["", "", "", ""]
    for chunk in text(client, ["Once upon a time", "One, two,"], stream=True, **asked):
        for choice in chunk.choices:
            pieces[choice.index] += choice.text
    assert pieces == [choice.text for choice in reply.choices]
    best = text(client, "Once upon a time", best_of=3, temperature=1.0, seed=3, logprobs=0)
    made = text(client, "Once upon a time", n=3, temperature=1.0, seed=3, logprobs=0)

    def mean(choice: Any) -> float:
        found = choice.logprobs.token_logprobs
        return float(sum(found) / len(found))

    assert best.choices[0].text == max(made.choices, key=mean).text
    assert best.usage.completion_tokens == made.usage.completion_tokens


def test_the_middle(client: openai.OpenAI, is_qwen: bool) -> None:
    asked: Any = {"prompt": "def add(a, b):\n    return ", "suffix": "\n\nprint(add(1, 2))\n"}
    if is_qwen:
        assert "a + b" in text(client, **asked).choices[0].text
    else:
        with pytest.raises(openai.BadRequestError, match="suffix"):
            text(client, **asked)


@pytest.mark.parametrize(
    "setting",
    [
        *({"top_k": 1}, {"min_p": 1.0}, {"top_n_sigma": 0.0001}, {"typical_p": 0.9}),
        *({"xtc_probability": 0.0}, {"dry_multiplier": 0.8}, {"mirostat": 2}, {"mirostat": 1}),
        *({"repeat_penalty": 1.2, "repeat_last_n": 32}, {"dynatemp_range": 0.5}),
    ],
)
def test_local_sampler_settings(client: openai.OpenAI, setting: Any) -> None:
    """Each is taken, and with a seed says the same twice; some leave the best token only."""
    asked: Any = {"temperature": 0.9, "seed": 5, "max_tokens": 12, "extra_body": setting}
    once, again = (said(chat(client, **asked)) for _ in range(2))
    assert once == again
    if setting.keys() & {"top_k", "min_p", "top_n_sigma"}:
        assert once == said(chat(client, max_tokens=12))


def test_logit_bias_and_ends(client: openai.OpenAI) -> None:
    reply = chat(client, extra_body={"ignore_eos": True}, max_completion_tokens=30, max_tokens=None)
    assert reply.usage.completion_tokens == 30
    first = chat(client, max_tokens=1, logprobs=True).choices[0].logprobs.content[0]
    ids = client.post("/../tokenize", body={"content": first.token}, cast_to=object)
    [token_id] = ids["tokens"]  # type: ignore[index]
    banned = chat(client, max_tokens=1, logprobs=True, logit_bias={str(token_id): -100})
    assert banned.choices[0].logprobs.content[0].token != first.token


# --- embeddings, models, errors ---------------------------------------------------------------


def test_embeddings_as_numbers_and_bytes(client: openai.OpenAI) -> None:
    texts = ["The cat sleeps.", "def f(x): return x"]
    as_numbers = client.embeddings.create(model="m", input=texts, encoding_format="float")
    as_bytes: Any = client.post(
        "/embeddings",
        body={"model": "m", "input": texts, "encoding_format": "base64"},
        cast_to=object,
    )
    for number, item in zip(as_numbers.data, as_bytes["data"], strict=True):
        packed = base64.b64decode(item["embedding"])
        found = struct.unpack(f"<{len(packed) // 4}f", packed)
        assert found == pytest.approx(number.embedding, abs=1e-6)
    by_default = client.embeddings.create(model="m", input=texts)  # base64, says the library
    assert by_default.data[0].embedding == pytest.approx(as_numbers.data[0].embedding, abs=1e-6)
    assert as_numbers.usage.prompt_tokens == as_numbers.usage.total_tokens > 0


def test_models(client: openai.OpenAI) -> None:
    [model] = client.models.list().data
    assert client.models.retrieve(model.id).id == model.id
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4o")


def test_what_has_no_effect_and_what_is_refused(client: openai.OpenAI) -> None:
    plain = said(chat(client))
    idle: Any = {"user": "u", "store": True, "metadata": {"a": "b"}, "service_tier": "auto"}
    assert said(chat(client, **idle)) == plain
    raw = client.chat.completions.with_raw_response.create(
        model="any", messages=[ASK], max_tokens=1, extra_body={"xyz": 1}
    )
    assert raw.headers["x-rushlight-ignored"] == "xyz"
    for more, param in (
        ({"audio": {"voice": "x", "format": "mp3"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"temperature": -1}, "temperature"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            chat(client, **more)
        assert refused.value.param == param
    with pytest.raises(openai.BadRequestError) as refused:
        chat(client, {"role": "user", "content": "x " * 2000})
    assert refused.value.code == "context_length_exceeded"
    assert re.search(r"\b20\d\d\b.*\b1024\b", refused.value.message)
