"""A chat becomes the one text its model was trained on, through the template in the model's file.

The output is shielded (see special_tokens): `Tokenizer.encode_template` makes it ids, `unshield`
plain text. Control tokens in messages are broken, and so is markup (thinking and tool tags) except
in the assistant's own turns: templates look there for `</think>`, and the model wrote it so.
Does not know HTTP, nor what the reply will look like.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, Self

from jinja2 import TemplateError, TemplateSyntaxError, meta
from jinja2.exceptions import SecurityError

from engine.errors import ChatTemplateError, InvalidRequest
from engine.files.gguf_file import GGUFFile
from engine.templates.chat_messages import normalise_messages
from engine.templates.default_templates import default_template
from engine.templates.template_fit import completed, fit
from engine.templates.template_options import NO_OPTIONS, TemplateOptions
from engine.templates.template_sandbox import (
    MAX_STEPS,
    GivenList,
    TemplateEnvironment,
    TemplateRefusal,
    render,
    strftime_now,
    to_json,
)
from engine.templates.template_style import (
    REASONING_KEYS,
    SPECIMEN,
    SPECIMEN_TOOL,
    SPECIMEN_VARIABLES,
    Message,
    TemplateStyle,
    find_style,
)
from engine.text.special_tokens import SpecialTokens, unshield
from engine.text.tokenizer import Tokenizer
from engine.tool_formats import find_tool_format
from engine.tool_formats.base import ToolFormat

NO_TEMPLATE: Final = (
    "this model's file has no chat template, and its vocabulary is neither ChatML's nor Llama 3's;"
    " use plain completions, or a model made for chat"
)

TEMPLATE_KEY: Final = "tokenizer.chat_template"
TEMPLATE_NAMES: Final = ("default", "tool_use")  # behind the key and a point, in some files

ASSISTANT_TEXTS: Final = ("content", *REASONING_KEYS)
THINKING_TAGS: Final = frozenset({"<think>", "</think>", "[THINK]", "[/THINK]"})
TOKEN_VARIABLES: Final = {  # in metadata -> in templates
    "bos": "bos_token",
    "eos": "eos_token",
    "unknown": "unk_token",
    "padding": "pad_token",
}
_MARKUP: Final = re.compile(r"[<\[].+[>\]]", re.DOTALL)
# Marks the place in a message at which the rendered text ends. A private character: it may stand in
# a message too, as only the last one counts.
CUT: Final = "\U0010fffd"
_RESERVED: Final = ("messages", "tools", "documents", "add_generation_prompt")


class ChatTemplate:
    """One model's chat template. Any thread may use it.

    source:    the template's text; '' when there is none.
    error:     why this model cannot chat; '' when it can.
    variables: names of the variables the template reads, such as `tools` or `enable_thinking`.
    """

    def __init__(
        self,
        source: str,
        tokens: Mapping[str, str] | None = None,
        control: Iterable[str] = (),
        user_defined: Iterable[str] = (),
        variants: Mapping[str, ChatTemplate] | None = None,
    ) -> None:
        """Compile; a bad template does not raise but sets `error`.

        tokens: variables that hold a token's text, such as bos_token.
        control, user_defined: texts of the model's special tokens.
        variants: the model's other templates by name; `tool_use` serves chats with tools.
        """
        self._variants = variants or {}
        self.source: Final = source
        self.error = "" if source else NO_TEMPLATE
        self.variables: frozenset[str] = frozenset()
        self._tokens = {"bos_token": "", "eos_token": "", **(tokens or {})}
        markup = [text for text in user_defined if self._is_markup(text)]
        self._all_tokens = SpecialTokens(dict.fromkeys((*control, *markup), 0))
        self._control_tokens = SpecialTokens(dict.fromkeys(set(control) - THINKING_TAGS, 0))
        try:
            environment = TemplateEnvironment()
            self._template = environment.from_string(source)
            self.variables = frozenset(meta.find_undeclared_variables(environment.parse(source)))
        except Exception as error:  # a hostile template may raise anything, RecursionError for one
            self.error = f"the model's chat template does not compile: {_reason(error)}"

    @classmethod
    def from_gguf(cls, gguf: GGUFFile, tokenizer: Tokenizer) -> Self:
        """The file's own template, or the one that its vocabulary was plainly made for.

        Raises GGUFError for damaged metadata. No template, or a bad one, sets `error`.
        """
        vocabulary = tokenizer.vocabulary
        tokens = {}
        for name, variable in TOKEN_VARIABLES.items():
            token_id = gguf.get_int(f"tokenizer.ggml.{name}_token_id", None)
            if token_id is not None and 0 <= token_id < tokenizer.n_vocab:
                tokens[variable] = vocabulary.texts[token_id]
        special = vocabulary.control.keys() | vocabulary.user_defined.keys()
        known = (tokens, vocabulary.control, vocabulary.user_defined)
        named = {name: gguf.get_str(f"{TEMPLATE_KEY}.{name}", "") for name in TEMPLATE_NAMES}
        source = gguf.get_str(TEMPLATE_KEY, "") or named.pop("default")
        if not source and not any(named.values()):
            source = default_template(special)
        variants = {name: cls(text, *known) for name, text in named.items() if text}
        return cls(source, *known, variants)

    def render(
        self, messages: Sequence[Mapping[str, Any]], options: TemplateOptions = NO_OPTIONS
    ) -> str:
        """The chat as shielded text.

        Raises ChatTemplateError (none there, it refuses, it fails), InvalidRequest (bad messages).
        """
        if options.tools and "tool_use" in self._variants:
            return self._variants["tool_use"].render(messages, options)
        if self.error:
            raise ChatTemplateError(self.error)
        if options.documents and "documents" not in self.variables:
            raise InvalidRequest(
                "documents: this model's chat template has no place for them; put them into a"
                " message",
                "documents",
            )
        for name in options.template_kwargs:
            if name in _RESERVED or name in self._tokens:
                raise InvalidRequest(
                    f"the chat template's variable '{name}' cannot be set this way",
                    f"chat_template_kwargs.{name}",
                )
        normal = normalise_messages(messages)
        if options.continue_last:
            normal[-1] = _open_ended(normal[-1])
        try:
            shielded = {
                **_shielded(options.template_kwargs, self._all_tokens),
                "messages": [self._prepare(message) for message in normal],
                "tools": _shielded(options.tools, self._all_tokens),
                "documents": _shielded(options.documents, self._all_tokens),
                "add_generation_prompt": (
                    options.add_generation_prompt and not options.continue_last
                ),
            }
            rendered = self._render_fitting(shielded)
        except TemplateRefusal as refusal:
            raise ChatTemplateError(unshield(str(refusal))) from None
        except Exception as error:  # anything: the template is a stranger's code
            reason = unshield(_reason(error))
            raise ChatTemplateError(f"the model's chat template failed: {reason}") from error
        if not options.continue_last:
            return rendered
        before, cut, _ = rendered.rpartition(CUT)
        if not cut:
            raise ChatTemplateError("this model's chat template cannot continue the last message")
        return before

    def _render_fitting(self, variables: Mapping[str, Any]) -> str:
        """Render what the template can show as it is, the rest as text.

        Some templates fail on tools without a description, or on schemas they do not know; then the
        tools are completed, and at last told as text.
        """
        style, tools = self._style, variables["tools"]
        attempts = [(style, tools)]
        if tools:
            attempts.append((style, GivenList(map(completed, tools))))
            attempts.append((replace(style, shows_tools=False), tools))
        for i, (style, tools) in enumerate(attempts):
            messages = fit(variables["messages"], tools, style, self.tool_format)
            shown = tools if style.shows_tools else None
            try:
                return self._render({**variables, "messages": messages, "tools": shown}, style)
            except TemplateRefusal:
                raise
            except Exception:
                if i == len(attempts) - 1:
                    raise
        raise AssertionError("there is at least one attempt")

    @cached_property
    def specimen(self) -> str:
        """What the template prints of a small chat with thinking and a tool call; '' if it fails.
        Its marks are those of the model, even where the source puts them together from parts.
        """
        return self._try(SPECIMEN, self._style, tools=[SPECIMEN_TOOL], **SPECIMEN_VARIABLES)

    @cached_property
    def tool_format(self) -> ToolFormat:
        """How the model writes tool calls."""
        return find_tool_format(self.marked_text)

    @property
    def marked_text(self) -> str:
        """Where to look for the marks of the model's replies."""
        texts = [self.source, self.specimen]
        return "".join(texts + [variant.marked_text for variant in self._variants.values()])

    @cached_property
    def _style(self) -> TemplateStyle:
        return find_style(self._try, self.source)

    def _try(self, messages: list[Message], style: TemplateStyle, **variables: Any) -> str:
        """What the template prints of a small chat; '' when it fails."""
        try:
            given = {**variables, "messages": messages, "add_generation_prompt": True}
            return self._render(given, style, max_steps=100_000)
        except Exception:
            return ""

    def _render(
        self, variables: Mapping[str, Any], style: TemplateStyle, max_steps: int = MAX_STEPS
    ) -> str:
        tools = variables.get("tools") or style.absent_tools
        return render(
            self._template,
            {
                **self._tokens,
                **variables,
                "messages": GivenList(map(style.message, variables["messages"])),
                "tools": tools,
                "documents": variables.get("documents") or None,
                # Firefunction's names for the tools and the date.
                "functions": to_json(tools or [], indent=4),
                "datetime": strftime_now("%b %d %Y %H:%M:%S"),
            },
            max_steps,
        )

    def _prepare(self, message: Message) -> Message:
        """The message shielded."""
        own = ASSISTANT_TEXTS if message["role"] == "assistant" else ()
        return {
            _shielded(key, self._all_tokens): _shielded(
                value, self._control_tokens if key in own else self._all_tokens
            )
            for key, value in message.items()
        }

    def _is_markup(self, text: str) -> bool:
        """Whether an added word is structure of the chat: the template or all models use it so."""
        return bool(_MARKUP.fullmatch(text)) and (
            text in self.source or text in THINKING_TAGS or text[1] in "|｜"
        )


def _open_ended(message: Message) -> Message:
    """An assistant's message with CUT where it is to go on: in its thinking, if it got no further.

    Raises InvalidRequest.
    """
    if message["role"] != "assistant" or message.get("tool_calls"):
        raise InvalidRequest(
            "only a last message of the assistant's, without tool_calls, can be continued",
            "continue_final_message",
        )
    if message["content"]:
        return {**message, "content": message["content"] + CUT}
    for key in ASSISTANT_TEXTS[1:]:
        if message.get(key):
            return {**message, "content": "", key: message[key] + CUT}
    return {**message, "content": CUT}


def _shielded(value: Any, tokens: SpecialTokens) -> Any:
    """A copy of a JSON value with all its texts shielded, keys included."""
    if isinstance(value, str):
        return tokens.shield(value)
    if isinstance(value, Mapping):
        return {_shielded(k, tokens): _shielded(v, tokens) for k, v in value.items()}
    if isinstance(value, Sequence):
        return GivenList(_shielded(item, tokens) for item in value)
    return value


def _reason(error: Exception) -> str:
    if isinstance(error, TemplateSyntaxError):
        return f"line {error.lineno}: {error.message}"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, SecurityError):
        return f"it is not allowed to do this: {error}"
    if isinstance(error, TemplateError):
        return str(error)
    return f"{type(error).__name__}: {error}"
