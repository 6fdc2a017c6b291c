"""What a reply's text must be, in every form that clients send it: OpenAI's response_format,
llama.cpp's grammar and json_schema, vLLM's structured_outputs and guided_*.

Knows forms only; whether a schema or a grammar makes sense is the engine's to say.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from engine import InvalidRequest
from server.ask import Constraint
from server.openai.fields import CompletionFields
from server.request_object import Object, RequestObject


class JsonSchemaFormat(RequestObject):
    name: str | None = None
    description: str | None = None
    schema_: Object | bool | None = Field(None, alias="schema")
    strict: bool | None = None  # a schema is always kept to


class ResponseFormat(RequestObject):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema_: Object | bool | None = Field(None, alias="schema")  # llama.cpp's, with json_object


class GrammarFormat(RequestObject):
    """As in OpenAI's custom tools, and llama.cpp's dialect besides."""

    syntax: Literal["gbnf", "lark", "regex"]
    definition: str


class StructuredOutputs(RequestObject):
    json_: Object | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = Field(None, min_length=1)
    grammar: str | None = None
    json_object: bool | None = None


class ConstraintFields(CompletionFields):
    """The fields of a body that constrain a reply's text. At most one of them may be used."""

    response_format: ResponseFormat | None = None
    grammar: str | GrammarFormat | None = None
    json_schema: Object | bool | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Object | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = Field(None, min_length=1)
    guided_grammar: str | None = None

    def constraint(self) -> Constraint | None:
        """Raises: InvalidRequest."""
        found = list(self._constraints())
        if len(found) > 1:
            first, second = found[0].param, found[1].param
            raise InvalidRequest(f"{first} and {second} cannot be given together", second)
        return found[0] if found else None

    def _constraints(self) -> Iterator[Constraint]:
        if self.response_format:
            yield from _of_format(self.response_format)
        if isinstance(self.grammar, GrammarFormat):
            yield Constraint(self.grammar.syntax, self.grammar.definition, "grammar")
        elif self.grammar:
            yield _of_grammar(self.grammar, "grammar")
        if self.json_schema is not None:
            yield Constraint("json_schema", self.json_schema, "json_schema")
        if self.structured_outputs:
            yield from _of_structured_outputs(self.structured_outputs)
        if self.guided_json is not None:
            yield Constraint("json_schema", self.guided_json, "guided_json")
        if self.guided_regex is not None:
            yield Constraint("regex", self.guided_regex, "guided_regex")
        if self.guided_choice is not None:
            yield _of_choice(self.guided_choice, "guided_choice")
        if self.guided_grammar is not None:
            yield _of_grammar(self.guided_grammar, "guided_grammar")


def _of_format(given: ResponseFormat) -> Iterator[Constraint]:
    match given.type:
        case "json_object" if given.schema_ is None:
            yield Constraint("json_object", None, "response_format")
        case "json_object":
            yield Constraint("json_schema", given.schema_, "response_format.schema")
        case "json_schema":
            inside = given.json_schema.schema_ if given.json_schema else given.schema_
            if inside is None:
                where = "response_format.json_schema.schema"
                raise InvalidRequest(f"{where} is missing", where)
            yield Constraint("json_schema", inside, "response_format.json_schema.schema")


def _of_structured_outputs(given: StructuredOutputs) -> Iterator[Constraint]:
    where = "structured_outputs"
    if given.json_ is not None:
        yield Constraint("json_schema", given.json_, f"{where}.json")
    if given.regex is not None:
        yield Constraint("regex", given.regex, f"{where}.regex")
    if given.choice is not None:
        yield _of_choice(given.choice, f"{where}.choice")
    if given.grammar is not None:
        yield _of_grammar(given.grammar, f"{where}.grammar")
    if given.json_object:
        yield Constraint("json_object", None, f"{where}.json_object")


def _of_choice(texts: list[str], param: str) -> Constraint:
    alternatives = " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
    return Constraint("lark", f"start: {alternatives}", param)


def _of_grammar(text: str, param: str) -> Constraint:
    """Its dialect shows in how rules are written: `root ::= ...` or `start: ...`."""
    kind: Literal["gbnf", "lark"] = "gbnf" if "::=" in text else "lark"
    return Constraint(kind, text, param)
