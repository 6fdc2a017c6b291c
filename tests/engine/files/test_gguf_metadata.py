"""Metadata is of the kind that is asked for, or refused by name."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from engine.errors import GGUFError
from engine.files.gguf_file import GGUFFile
from tests.raw_gguf import (
    ARRAY,
    BOOL,
    FLOAT32,
    I32,
    STRING,
    U32,
    entry,
    open_raw,
    text,
    u32,
    u64,
)


@pytest.fixture
def typed(path: Path) -> GGUFFile:
    return open_raw(
        path,
        [
            entry("int", U32, u32(7)),
            entry("float", FLOAT32, struct.pack("<f", 1.5)),
            entry("nan", FLOAT32, struct.pack("<f", float("nan"))),
            entry("bool", BOOL, b"\1"),
            entry("str", STRING, text("hi")),
            entry("strs", ARRAY, u32(STRING) + u64(1) + text("hi")),
            entry("ints", ARRAY, u32(I32) + u64(2) + struct.pack("<ii", 1, -1)),
        ],
    )


GETTERS = ("get_int", "get_float", "get_bool", "get_str", "get_strings", "get_array")


@pytest.mark.parametrize(
    ("getter", "accepted"),
    [
        ("get_int", {"int"}),
        ("get_float", {"int", "float"}),
        ("get_bool", {"bool"}),
        ("get_str", {"str"}),
        ("get_strings", {"strs"}),
        ("get_array", {"ints"}),
    ],
)
def test_getters_accept_their_type_only(typed: GGUFFile, getter: str, accepted: set[str]) -> None:
    for key in typed.metadata:
        if key in accepted:
            getattr(typed, getter)(key)
        else:
            with pytest.raises(GGUFError, match=f"metadata '{key}' should be an?"):
                getattr(typed, getter)(key)
            with pytest.raises(GGUFError, match=f"metadata '{key}' should be an?"):
                getattr(typed, getter)(key, None)  # a default is for a key that is missing


def test_getters_return_plain_values(typed: GGUFFile) -> None:
    assert typed.get_int("int") == 7
    assert typed.get_float("float") == 1.5
    assert type(typed.get_float("int")) is float
    assert typed.get_bool("bool") is True
    assert typed.get_str("str") == "hi"
    assert typed.get_strings("strs")[0] == "hi"
    assert list(typed.get_array("ints")) == [1, -1]


@pytest.mark.parametrize("getter", GETTERS)
def test_a_missing_key_gives_the_default_or_its_name(typed: GGUFFile, getter: str) -> None:
    default = object()
    assert getattr(typed, getter)("gone", default) is default
    assert getattr(typed, getter)("gone", None) is None
    with pytest.raises(GGUFError, match="metadata 'gone' is missing"):
        getattr(typed, getter)("gone")
