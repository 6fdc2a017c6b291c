"""The rule of constrained replies, on a real model: what no limit cut is valid.

Judged by the `jsonschema` library; formats by the standard library.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import jsonschema
import pytest

from engine import Engine, EngineConfig, Finished, Grammar, RequestOptions, SamplingParams
from tests.json_schemas import ALL, Schema
from tests.model_files import SMOLLM2, needs

pytestmark = [pytest.mark.model, needs(SMOLLM2)]

SCHEMAS = [(f"{kind}-{i}", s) for kind, schemas in ALL.items() for i, s in enumerate(schemas)]

formats = jsonschema.FormatChecker(("date", "email", "ipv4", "ipv6", "uuid"))


@formats.checks("date-time", raises=ValueError)
def is_date_time(text: str) -> bool:
    # Leap seconds are valid, though `datetime` has none.
    return bool(datetime.datetime.fromisoformat(re.sub(r":60(\.\d+)?", ":59", text.upper())[:19]))


@formats.checks("time", raises=ValueError)
def is_time(text: str) -> bool:
    return bool(datetime.time.fromisoformat(text[:8].replace(":60", ":59")) or True)


@formats.checks("duration")
def is_duration(text: str) -> bool:
    day = r"(\d+W|(\d+Y)?(\d+M)?(\d+D)?)"
    return re.fullmatch(rf"P(?=.){day}(T(?=.)(\d+H)?(\d+M)?(\d+S)?)?", text) is not None


@formats.checks("hostname")
def is_hostname(text: str) -> bool:
    label = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
    return re.fullmatch(rf"{label}(\.{label})*", text) is not None and len(text) <= 253


@formats.checks("uri", raises=ValueError)
def is_uri(text: str) -> bool:
    return bool(urlsplit(text).scheme)


def problem(schema: Schema, text: str) -> str | None:
    """What is wrong with a reply."""
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    try:
        kind(schema, format_checker=formats).validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{text!r}: {error}"
    return None


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(EngineConfig(SMOLLM2, n_ctx=1024, disk_bytes=0)) as engine:
        yield engine


def reply(engine: Engine, grammar: Grammar, prompt: list[int], **params: object) -> tuple[str, str]:
    """Text and finish reason."""
    generated: list[str] = []
    ended: list[Finished] = []
    for event in engine.generate(
        prompt,
        SamplingParams(**{"temperature": 1.0, "max_tokens": 200, **params}),  # type: ignore[arg-type]
        RequestOptions(grammar=grammar),
    ):
        generated.append(event.text)
        if isinstance(event, Finished):
            ended.append(event)
    return "".join(generated), ended[0].finish_reason


def test_there_are_two_hundred() -> None:
    assert len(SCHEMAS) >= 200
    assert len({json.dumps(schema) for _, schema in SCHEMAS}) == len(SCHEMAS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ALL)
def test_every_finished_reply_is_valid(engine: Engine, kind: str) -> None:
    message = {"role": "user", "content": "Make up an example. Answer in JSON."}
    prompt = engine.encode_chat([message])
    problems, n_cut = [], 0
    for name, schema in SCHEMAS:
        if name.startswith(f"{kind}-"):
            grammar = Grammar.compile("json_schema", schema, engine.tokenizer)
            text, reason = reply(engine, grammar, prompt, seed=len(name))
            if reason == "length":
                n_cut += 1
            elif found := problem(schema, text):
                problems.append(f"{name} {json.dumps(schema)}: {found}")
    assert problems == []
    assert n_cut <= len(ALL[kind]) / 2  # this model likes endless decimals


@pytest.mark.slow
def test_whitespace_does_not_run_on(engine: Engine) -> None:
    """Not even where bias makes it the likeliest token everywhere."""
    prompt = engine.encode_prompt("JSON:")
    blank = {i for text in (" ", "\n", "\t", "  ", "\n\n") for i in engine.tokenizer.encode(text)}
    bias = dict.fromkeys(blank, 20.0)
    for schema in (ALL["object"][1], ALL["array"][1], True):
        grammar = Grammar.compile("json_schema", schema, engine.tokenizer)
        text, reason = reply(engine, grammar, prompt, logit_bias=bias, max_tokens=200, seed=1)
        assert reason == "stop" or schema is True
        assert re.search(r"\s{17}", re.sub(r'"([^"\\]|\\.)*"?', "_", text)) is None, text


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0},
        {"logit_bias": {5: 100.0}},  # the grammar has the last word
        {"ignore_eos": True},
        {"min_tokens": 100},
        {"mirostat": 2},
        {"top_k": 1, "repeat_penalty": 1.5, "dry_multiplier": 1.0},
        {"typical_p": 0.5, "top_p": 1.0, "min_p": 0.0, "xtc_probability": 1.0, "n_probs": 3},
    ],
)
def test_the_rule_holds_with_every_sampler(engine: Engine, params: dict[str, object]) -> None:
    schema = ALL["realistic"][1]
    grammar = Grammar.compile("json_schema", schema, engine.tokenizer)
    text, reason = reply(engine, grammar, engine.encode_prompt("JSON: "), seed=3, **params)
    assert reason == "length" or problem(schema, text) is None
