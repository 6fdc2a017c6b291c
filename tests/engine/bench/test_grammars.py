"""What a grammar costs: the report counts every token once, and its figures fit together."""

from __future__ import annotations

import pytest
from gguf import TokenType

from engine.bench import grammars
from engine.files.gguf_file import GGUFFile
from engine.grammar.grammar import Grammar
from engine.text.tokenizer import Tokenizer
from tests.vocab_gguf import write_vocab_gguf

MERGES = ["1 2", "a b", '{ "']
CHOICE = {  # 13 characters of `{"kind": "..."}` at least, and then one of two words
    "type": "object",
    "properties": {"kind": {"enum": ["north", "south"]}},
    "required": ["kind"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("vocab") / "vocab.gguf"
    write_vocab_gguf(path, {"<|im_end|>": TokenType.CONTROL}, MERGES, eos="<|im_end|>")
    return Tokenizer.from_gguf(GGUFFile(path))


def test_a_report_holds_every_part_of_a_tokens_cost(tokenizer: Tokenizer) -> None:
    integer = {"type": "integer", "minimum": 1000, "maximum": 9999}
    report = grammars.run(tokenizer, [CHOICE, integer])
    assert report["n_vocab"] == tokenizer.n_vocab
    assert report["n_tokens"] > 0
    assert report["first_schema_ms"] > 0
    assert report["next_schema_ms"] > 0
    parts = [report[name] for name in ("forced", "mask", "apply", "accept")]
    for summary in (*parts, report["all"]):
        assert 0 <= summary["p50"] <= summary["p99"] <= summary["max"]
    assert report["all"]["mean"] == pytest.approx(sum(p["mean"] for p in parts), abs=0.003)
    assert report["all"]["max"] >= max(p["max"] for p in parts)
    assert 0 <= report["above_limit"] <= 1


def test_chosen_and_forced_tokens_make_up_the_reply(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the grammar was told in both ways is a text that it describes."""
    taken: list[list[int]] = []
    start = Grammar.start

    def note(grammar: Grammar) -> object:
        state, ids = start(grammar), []
        taken.append(ids)
        accept = state.accept
        monkeypatch.setattr(state, "accept", lambda i: (ids.append(i), accept(i)))
        return state

    monkeypatch.setattr(Grammar, "start", note)
    report = grammars.run(tokenizer, [CHOICE, CHOICE])
    texts = {"".join(tokenizer.decode(ids).split()) for ids in taken}
    assert texts <= {'{"kind":"north"}', '{"kind":"south"}'}
    n_replies = len(taken)
    # The first chosen token of a reply is left out.
    assert report["n_tokens"] + report["n_forced"] == sum(map(len, taken)) - n_replies
    assert report["n_forced"] >= n_replies * len("orth")


def test_above_the_limit_are_the_tokens_that_take_longer(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit_ms, share in ((1e6, 0), (-1, 1)):
        monkeypatch.setattr(grammars, "_LIMIT_MS", limit_ms)
        assert grammars.run(tokenizer, [CHOICE, CHOICE])["above_limit"] == share
