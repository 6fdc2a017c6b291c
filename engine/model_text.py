"""ModelText: what a model makes of text. Prompts and chats to ids, ids to text, and the grammars
that a reply may have to follow.

Knows the model's vocabulary and template; neither its weights nor how requests run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from engine.errors import InvalidRequest
from engine.files.gguf_file import GGUFFile
from engine.grammar.grammar import Grammar
from engine.grammar.reply_grammar import reply_grammar
from engine.info import RenderedChat
from engine.replies.chat_format import ChatFormat
from engine.replies.reply_rules import ReplyRules
from engine.templates.chat_template import ChatTemplate
from engine.templates.template_options import NO_OPTIONS, TemplateOptions
from engine.text.infill import InfillTokens
from engine.text.special_tokens import unshield
from engine.text.tokenizer import Tokenizer


class ModelText:
    """The text side of one model. Usable from any thread."""

    def __init__(self, gguf: GGUFFile, tokenizer_pre: str) -> None:
        """tokenizer_pre: as in EngineConfig. Raises what `Tokenizer.from_gguf` does."""
        self.tokenizer: Final = Tokenizer.from_gguf(gguf, tokenizer_pre)
        self.chat_template: Final = ChatTemplate.from_gguf(gguf, self.tokenizer)
        self.chat_format: Final = ChatFormat.of(self.chat_template, self.tokenizer)
        self._infill = InfillTokens.of(self.tokenizer.vocabulary)

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a raw completion prompt. Whoever writes one may mean special tokens by their
        texts: they count.
        """
        return self.tokenizer.encode_prompt(text)

    @property
    def can_infill(self) -> bool:
        """Whether the model knows how to fill in the middle."""
        return self._infill is not None

    def encode_infill(self, prefix: str, suffix: str) -> list[int]:
        """Token ids that ask for the text between two others.

        Raises InvalidRequest when the model does not know how.
        """
        before, after = self._encode_part(prefix), self._encode_part(suffix)
        return [*self.tokenizer.encode_prompt(""), *self._infill_tokens.around(before, after)]

    @property
    def _infill_tokens(self) -> InfillTokens:
        if self._infill is None:
            raise InvalidRequest(
                "suffix: this model has no tokens for filling in the middle", param="suffix"
            )
        return self._infill

    def _encode_part(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special=False)

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], template: TemplateOptions = NO_OPTIONS
    ) -> list[int]:
        """Token ids of a chat, through the model's template. Raises what `render_chat` does."""
        return self.render_chat(messages, template).ids

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], template: TemplateOptions = NO_OPTIONS
    ) -> RenderedChat:
        """A chat through the model's template. Raises ChatTemplateError, InvalidRequest."""
        rendered = self.chat_template.render(messages, template)
        return RenderedChat(unshield(rendered), self.tokenizer.encode_template(rendered))

    def constrain(self, rules: ReplyRules, chat_ids: Sequence[int] | None) -> Grammar | None:
        """The grammar of the replies that obey `rules`; None = all do.

        chat_ids: a chat's prompt; None for one that is no chat: then only the text counts.
        May take a second at first. Raises InvalidRequest: it cannot be enforced.
        """
        if chat_ids is None:
            if not rules.kind:
                return None
            return Grammar.compile(rules.kind, rules.source, self.tokenizer, rules.param)
        tail = self.chat_format.prompt_tail(chat_ids)
        return reply_grammar(rules, self.chat_format, self.tokenizer, tail)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some tokens, control tokens left out."""
        return self.tokenizer.decode(ids)

    def token_bytes(self, token_id: int) -> bytes:
        """What a token stands for, which may be a part of a character; a special token's name."""
        return self.tokenizer.vocabulary.bytes_of(token_id)

    def encode_text(self, text: str) -> list[int]:
        """Token ids of a text that nothing follows, with what the model wants around it. Special
        tokens' texts in it stay text.
        """
        return self.tokenizer.encode(text)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of a text, for those who want to see them.

        add_special: with what the model wants around it; parse_special: control tokens' texts
        count as these. Raises InvalidRequest.
        """
        return self.tokenizer.encode(text, add_special, parse_special)

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of tokens, control tokens by their names. Raises InvalidRequest."""
        self.check_ids(ids, "tokens")
        return self.tokenizer.decode_all(ids)

    def check_ids(self, ids: Iterable[int], param: str, where: str = "") -> None:
        """Raises InvalidRequest, naming `param`, when one of them is no token's. where: begins the
        message.
        """
        n_vocab = self.tokenizer.n_vocab
        for token_id in ids:
            if not 0 <= token_id < n_vocab:
                raise InvalidRequest(
                    f"{where}token id {token_id} is outside the vocabulary (0..{n_vocab - 1})",
                    param,
                )

    @property
    def bos_token(self) -> str:
        """What begins every text, by name; '' when the model has none."""
        return self._name(self.tokenizer.bos_id)

    @property
    def eos_token(self) -> str:
        """What ends a text, by name; '' when the model has none."""
        return self._name(self.tokenizer.eos_id)

    def _name(self, token_id: int | None) -> str:
        return "" if token_id is None else self.token_bytes(token_id).decode(errors="replace")
