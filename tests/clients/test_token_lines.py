"""`rushlight tokenize` on a file that holds a vocabulary only, as a program would use it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gguf import TokenType

from clients.errors import UserError
from clients.token_lines import LineError, token_lines
from tests.vocab_gguf import LETTERS, MERGES, write_vocab_gguf

ROOT = Path(__file__).resolve().parents[2]
A, B = LETTERS.index("a"), LETTERS.index("b")
FIRST_MERGED = 256
SPECIAL = {"<s>": TokenType.CONTROL, "<|im_end|>": TokenType.CONTROL}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "vocab.gguf"
    write_vocab_gguf(path, SPECIAL, bos="<s>", add_bos=True)
    return path


def rushlight(*arguments: object, stdin: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "clients", *map(str, arguments)],
        cwd=ROOT,
        input=stdin,
        capture_output=True,
        timeout=60,
    )


def encode(model: Path, *lines: Any) -> list[list[int]]:
    return [
        json.loads(ids) for ids in token_lines(model, [json.dumps(li).encode() for li in lines])
    ]


def test_the_command(model: Path) -> None:
    merged = list(dict.fromkeys(MERGES))
    ab, bos = FIRST_MERGED + merged.index("a b"), FIRST_MERGED + len(merged)
    stdin = '{"text": "ab"}\n{"text": "b€", "add_special": false}\n{"text": ""}'.encode()
    done = rushlight("tokenize", model, stdin=stdin)
    euro = list("€".encode())
    assert [json.loads(line) for line in done.stdout.splitlines()] == [[bos, ab], [B, *euro], [bos]]
    assert done.returncode == 0
    # As little as it needs: no kernels, no server, no settings.
    imported = set(re.findall(rb"\| +(\w+)", done.stderr))
    assert b"numpy" in imported
    assert not imported & {b"numba", b"server", b"fastapi", b"httpx", b"jinja2"}


def test_special_tokens_are_read_when_asked_for(model: Path) -> None:
    text = "a<|im_end|>"
    plain, parsed = encode(model, {"text": text}, {"text": text, "parse_special": True})
    assert parsed == [plain[0], A, plain[0] + 1]
    assert len(plain) > 3
    assert not set(plain[1:]) & {plain[0], plain[0] + 1}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"", "line 2 is not JSON"),
        (b'{"text": "a"', "line 2 is not JSON"),
        (b'{"text": "\xff"}', "line 2 is not JSON"),
        (b"[" * 100_000, "line 2 is not JSON"),
        (b'"a"', "line 2 is not a JSON object"),
        (b"{}", "line 2 has no 'text'"),
        (b'{"text": 1}', "line 2: 'text' must be a string"),
        (b'{"text": "a", "add_special": 1}', "line 2: 'add_special' must be true or false"),
        (b'{"text": "a", "parse_special": null}', "line 2: 'parse_special' must be true or false"),
        (b'{"text": "a", "bos": true}', "line 2: unknown field 'bos'; known: text, add_special"),
        (b'{"text": "\\ud800"}', r"line 2: the text is not Unicode"),
    ],
)
def test_a_bad_line_is_named(line: bytes, message: str, model: Path) -> None:
    lines = token_lines(model, [b'{"text": "a"}', line])
    assert A in json.loads(next(lines))
    with pytest.raises(LineError, match=message):
        next(lines)


def test_errors_are_one_line_and_status_1(model: Path, tmp_path: Path) -> None:
    done = rushlight("tokenize", model, stdin=b'{"text": "a"}\nnonsense\n{"text": "a"}\n')
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 1  # what came before the bad line
    last = done.stderr.splitlines()[-1]
    assert last.startswith(b"rushlight: error: line 2 is not JSON: ")
    write_vocab_gguf(tmp_path / "odd.gguf", SPECIAL, pre="banana")
    done = rushlight("tokenize", tmp_path / "odd.gguf", stdin=b"")
    assert done.returncode == 1
    assert b"unsupported pre-tokenizer 'banana'" in done.stderr.splitlines()[-1]
    done = rushlight("tokenize", "--pre", "gpt-2", tmp_path / "odd.gguf", stdin=b'{"text": "a"}\n')
    assert json.loads(done.stdout) == [A]
    with pytest.raises(UserError, match=r"none\.gguf"):
        next(token_lines(tmp_path / "none.gguf", [b"{}"]))
