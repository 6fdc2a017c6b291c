"""Grammars that a reply must follow, over a model's vocabulary: JSON schemas, Lark, regex, GBNF.

llguidance does the parsing; this compiles, checks and keeps what it makes, and steps through it
token by token. Whether a schema can be enforced at all is json_schema.py's question. Does not know
how a token is chosen among those that are allowed.
"""

from __future__ import annotations

import enum
import json
import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from engine.errors import EngineError, InvalidRequest
from engine.grammar.closed_objects import close_objects
from engine.grammar.json_schema import check_schema
from engine.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import llguidance

log = logging.getLogger("rushlight.engine")


class GrammarKind(enum.StrEnum):
    """How a grammar is written."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"  # any object
    LARK = "lark"  # llguidance's dialect, with %json { schema } inside
    REGEX = "regex"
    GBNF = "gbnf"  # llama.cpp's


# How JSON is written. Whitespace between two tokens is limited: a weak model would never leave it.
# A character has one spelling in a string, or "\u0061" would be another name for the property "a".
_JSON_STYLE: Final = {
    "whitespace_flexible": True,
    "whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,16}",
    "json_allowed_escapes": '"\\bfnrt',
    "lenient": False,
    "coerce_one_of": False,
}

# Tokens of plain string text are tested once, not in each state. In sets by length: where a string
# may have only a few characters more, those that surely fit need no test either. Each set takes
# time and memory with a large vocabulary; with more than these the mean grows again.
_SLICES: Final = [rf'[^"\\\x00-\x1F\x7F]{{1,{n}}}' for n in (4, 8, 16, 30)]

_MAX_SOURCE: Final = 1 << 20  # characters
_MAX_CACHED: Final = 32


class Grammar:
    """A compiled grammar. Any thread may use it, for any number of requests."""

    def __init__(self, matcher: llguidance.LLMatcher, n_vocab: int) -> None:
        self._matcher, self._n_vocab = matcher, n_vocab

    @classmethod
    def compile(
        cls,
        kind: GrammarKind | str,
        source: Mapping[str, Any] | bool | str | None,
        tokenizer: Tokenizer,
        param: str = "grammar",
    ) -> Grammar:
        """Compile for a vocabulary; what was compiled lately is kept. May take a second at first.

        source: the grammar's text; for a JSON schema also the schema itself.
        param:  the request's field that is to be named in errors.
        Raises InvalidRequest: it is wrong, cannot be enforced, or allows no text.
        """
        try:
            kind = GrammarKind(kind)
        except ValueError:
            known = ", ".join(GrammarKind)
            raise InvalidRequest(
                f"{param}: unknown kind of grammar '{kind}'; known: {known}", param
            ) from None
        return _compiler(tokenizer).compile(kind, source, param)

    def start(self) -> GrammarState:
        """A reply's beginning."""
        return GrammarState(self._matcher.deep_copy(), self._n_vocab)


class GrammarState:
    """Where in a grammar one reply is."""

    def __init__(self, matcher: llguidance.LLMatcher, n_vocab: int) -> None:
        self._matcher = matcher
        self._mask = np.zeros((n_vocab + 31) // 32, np.uint32)

    def allowed(self) -> npt.NDArray[np.uint32]:
        """u32[ceil(n_vocab / 32)]: a bit for each token that may come next, lowest first.

        End tokens are among them where the text may end. Overwritten by the next call.
        Raises EngineError when the grammar has become too complex to go on.
        """
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        self._raise_error()
        return self._mask

    def forced(self) -> list[int]:
        """The tokens that come next, as far as there is no choice: none where there is one at once.

        Cut as the tokenizer cuts their text. `allowed` would allow them only, one by one.
        """
        return list(self._matcher.compute_ff_tokens())

    def accept(self, token_id: int) -> None:
        """Take the next token. Raises EngineError when it is not allowed."""
        self._matcher.consume_token(token_id)
        self._raise_error()

    @property
    def is_over(self) -> bool:
        """Whether the text must end here."""
        return bool(self._matcher.is_stopped())

    def _raise_error(self) -> None:
        if self._matcher.is_error():
            raise EngineError(f"the grammar cannot go on: {_first_line(self._matcher.get_error())}")


class _Compiler:
    """Grammars over one vocabulary: llguidance's form of it, made when first needed."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._vocabulary = _Vocabulary(tokenizer)
        self._n_vocab = tokenizer.n_vocab
        self._lock = threading.Lock()
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._kept: OrderedDict[tuple[GrammarKind, str], Grammar] = OrderedDict()

    def compile(self, kind: GrammarKind, source: Any, param: str) -> Grammar:
        text = _as_text(kind, source, param)
        with self._lock:  # one at a time: it may take a core for a second
            if grammar := self._kept.get((kind, text)):
                self._kept.move_to_end((kind, text))
                return grammar
            grammar = Grammar(self._match(kind, text, param), self._n_vocab)
            self._kept[kind, text] = grammar
            if len(self._kept) > _MAX_CACHED:
                self._kept.popitem(last=False)
            return grammar

    def _match(self, kind: GrammarKind, text: str, param: str) -> llguidance.LLMatcher:
        from llguidance import LLMatcher

        if self._tokenizer is None:
            self._tokenizer = self._vocabulary.build()
        try:
            source = _to_llguidance(kind, text)
        except Exception as error:  # its converter raises plain ones, and ValueError
            raise InvalidRequest(f"{param}: {_first_line(str(error))}", param) from error
        matcher = LLMatcher(self._tokenizer, source, log_level=0)
        if matcher.is_error():
            raise InvalidRequest(f"{param}: {_first_line(matcher.get_error())}", param)
        first = matcher.deep_copy()
        if not any(first.compute_bitmask()) or first.is_error():
            problem = _first_line(first.get_error()) or "no text can follow it"
            raise InvalidRequest(f"{param}: {problem}", param)
        return matcher


class _Vocabulary:
    """A vocabulary as llguidance asks for it."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = weakref.ref(tokenizer)
        self.eos_token_id = -1
        self.bos_token_id: int | None = None
        self.tokens: Sequence[bytes] = ()
        self.special_token_ids: Sequence[int] = ()

    def build(self) -> llguidance.LLTokenizer:
        from llguidance import LLTokenizer

        tokenizer = self._tokenizer()
        assert tokenizer is not None, "a grammar is compiled for a tokenizer that is there"
        vocabulary, ids = tokenizer.vocabulary, range(tokenizer.n_vocab)
        ends = sorted(tokenizer.eog_ids)
        if not ends:
            raise InvalidRequest("grammars need a model that has an end token", "grammar")
        self.eos_token_id, self.bos_token_id = ends[0], tokenizer.bos_id
        self.tokens = [vocabulary.bytes_of(i) for i in ids]
        self.special_token_ids = [i for i in ids if vocabulary.is_hidden(i)]
        wrapper: Any = self  # it has what is asked for, if not the class
        made = LLTokenizer(wrapper, n_vocab=len(ids), eos_token=ends, slices=_SLICES)
        self.tokens = self.special_token_ids = ()  # they were copied
        return made

    def __call__(self, text: str | bytes) -> list[int]:
        """Token ids of text that must come next, so that it is cut as the model knows it."""
        tokenizer = self._tokenizer()
        assert tokenizer is not None, "the engine is open while a reply is made"
        if isinstance(text, bytes):
            text = text.decode()
        return tokenizer.encode_continuation(text)


_compilers: weakref.WeakKeyDictionary[Tokenizer, _Compiler] = weakref.WeakKeyDictionary()
_compilers_lock = threading.Lock()


def _compiler(tokenizer: Tokenizer) -> _Compiler:
    with _compilers_lock:
        return _compilers.setdefault(tokenizer, _Compiler(tokenizer))


def lark_json(schema: Any, param: str = "tools") -> str:
    """The right side of a Lark rule that matches JSON of this schema.

    Raises InvalidRequest, for the request's field `param`, when the schema cannot be enforced.
    """
    closed = close_objects(check_schema(schema, param))
    return "%json " + json.dumps({**closed, "x-guidance": _JSON_STYLE})


def _as_text(kind: GrammarKind, source: Any, param: str) -> str:
    """The grammar's text; for JSON the checked schema, whose order is part of its meaning."""
    if kind is GrammarKind.JSON_OBJECT:
        return '{"type": "object"}'
    if kind is GrammarKind.JSON_SCHEMA:
        try:
            schema = json.loads(source) if isinstance(source, str) else source
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"{param}: the schema is not JSON: {error}", param) from error
        source = json.dumps(close_objects(check_schema(schema, param)))
    if not isinstance(source, str) or not source.strip():
        raise InvalidRequest(f"{param}: a grammar is a text, and not an empty one", param)
    if len(source) > _MAX_SOURCE:
        raise InvalidRequest(
            f"{param}: {len(source)} characters are too many; the limit is {_MAX_SOURCE}", param
        )
    return source


def _to_llguidance(kind: GrammarKind, text: str) -> str:
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import gbnf_to_lark

    if kind is GrammarKind.REGEX:
        return str(LLMatcher.grammar_from_regex(text))
    if kind is GrammarKind.LARK:
        return str(LLMatcher.grammar_from_lark(text))
    if kind is GrammarKind.GBNF:
        return str(LLMatcher.grammar_from_lark(gbnf_to_lark(text)))
    return str(LLMatcher.grammar_from_json_schema(text, overrides=_JSON_STYLE))  # type: ignore[arg-type]


def _first_line(message: str) -> str:
    """What is wrong, without the dump of the parser's state that follows it."""
    first, *rest = message.strip().removeprefix("ERROR: ").split("\n")
    if "coerce_one_of" in first:
        return "oneOf is enforced where no value can fit two of its schemas, not here; use anyOf"
    if first.endswith(":"):  # the pattern follows, and then why it is wrong
        reasons = (line for line in rest if line.startswith("error: "))
        first += " " + next(reasons, "").removeprefix("error: ")
    return first[:500]
