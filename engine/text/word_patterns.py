"""Expressions that cut text into words, as the vocabularies of open models want them.

In Oniguruma's dialect. They cut as llama.cpp does, for which GGUF files are made: where that takes
capitals and small letters of other alphabets for one, so do these. Where a plain form would look
through a whole run of characters again from each place in it, a lookbehind keeps it to the first:
time is linear in the text. Does not know which model uses what.
"""

from __future__ import annotations

from typing import Final


class CutBehind(str):
    """An expression whose matches are cut off behind only. Others are cut off on both sides."""

    __slots__ = ()


def _one_of(*alternatives: str) -> str:
    return "|".join(alternatives)


_CONTRACTION = "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKED_WORD = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"  # with accents that are characters of their own
_THREE_DIGITS = r"\p{N}{1,3}"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SIGNS_OR_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_LINES = r"\s*[\r\n]+"
_SPACES = r"\s+(?!\S)|\s+"
_CJK = "[一-龥぀-ゟ゠-ヿ]+"


def _in_case(letters: str, behind: str = "") -> str:
    """Words of capitals, then small letters; letters that are neither count as both."""
    prefix, capital, small = r"[^\r\n\p{L}\p{N}]?", f"[{letters}&&[^a-z]]", f"[{letters}&&[^A-Z]]"
    return f"{prefix}{capital}*{small}+{behind}|{prefix}{capital}+{small}*{behind}"


DIGIT: Final = r"\p{N}"
DIGITS: Final = r"\p{N}+"
THREE_DIGITS: Final = _THREE_DIGITS

GPT_2: Final = _one_of("'s|'t|'re|'ve|'m|'ll|'d", r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+", _SPACES)
LLAMA_3: Final = _one_of(_CONTRACTION, _WORD, _THREE_DIGITS, _SIGNS, _LINES, _SPACES)
MINICPM_5: Final = _one_of(_CONTRACTION, _WORD, DIGITS, _SIGNS, _LINES, _SPACES)
QWEN_2: Final = _one_of(_CONTRACTION, _WORD, DIGIT, _SIGNS, _LINES, _SPACES)
QWEN_35: Final = _one_of(
    _CONTRACTION, _MARKED_WORD, DIGIT, r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", _LINES, _SPACES
)
UFAKZEKA: Final = _one_of(_WORD, DIGIT, _SIGNS, _LINES, _SPACES)
SEED_CODER: Final = _one_of(_CONTRACTION, _WORD, DIGIT, r" ?[^\s\p{L}\p{N}]+", _LINES, _SPACES)
EXAONE_MOE: Final = _one_of(
    _CONTRACTION,
    r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",  # several words in one
    DIGIT,
    r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
    _LINES,
    _SPACES,
)
JAIS_2: Final = _one_of(
    _CONTRACTION,
    _WORD,
    _THREE_DIGITS,
    _SIGNS,
    r"(?<![^\S\r\n])\s*[\r\n]+",  # behind a blank no line can end: this would have taken the blank
    *(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4)),
    r"\s{1,2}(?!\S)|\s",
)
TEKKEN: Final = _one_of(_in_case(r"\p{L}"), DIGIT, _SIGNS_OR_SLASH, _LINES, _SPACES)
GPT_4O: Final = _one_of(
    _in_case(r"\p{L}", f"(?:{_CONTRACTION})?"), _THREE_DIGITS, _SIGNS_OR_SLASH, _LINES, _SPACES
)
GRANITE_EMBED: Final = _one_of(
    _in_case(r"\p{L}\p{M}", f"(?:{_CONTRACTION})?"), _THREE_DIGITS, _SIGNS_OR_SLASH, _LINES, _SPACES
)
TINY_AYA: Final = _one_of(
    f"{_MARKED_WORD}(?:{_CONTRACTION})?", _THREE_DIGITS, _SIGNS_OR_SLASH, _LINES, _SPACES
)
YOUTU: Final = _one_of(
    f"{_MARKED_WORD}(?:{_CONTRACTION})?", DIGIT, _SIGNS_OR_SLASH, _LINES, _SPACES
)
YOUTU_SCRIPTS: Final = _one_of(
    "[가-힣ㄱ-ㆎ]+",
    "[！…“”‘’—：；，、-〿︰-﹏]+",
    "[ㄅ-ㄯ]+",
    _CJK,
)
_HAN = "㐀-䶿一-鿿\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ebef\U0002f800-\U0002fa1f"
KIMI_K2: Final = _one_of(
    f"[{_HAN}]+",
    rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}&&[^{_HAN}]]+(?:{_CONTRACTION})?",
    _THREE_DIGITS,
    _SIGNS,
    _LINES,
    _SPACES,
)

# Letters that have upper and lower case in the Unicode of its makers. Escapes: NFC changes those.
_DEEPSEEK_LETTERS = (
    r"A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅ"
    r"Ὀ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴ"
    r"ℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_ASIAN = r"[一-龥ࠀ-一가-\ud7ff&&\S]+"
DEEPSEEK_LLM: Final = (
    r"[\r\n]",
    rf"\s?[{_DEEPSEEK_LETTERS}]+",
    r"\s?[!-/:-~！-／：-～‘-‟、。]+",
    r"(?<!\s)\s+\z",
    _ASIAN,
    DIGITS,
)
DEEPSEEK_CODER: Final = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _ASIAN, DIGIT)

_SIGN_AND_WORD = r"[!-/:-~&&[^A-Za-z]][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
DEEPSEEK_V3: Final = (
    _THREE_DIGITS,
    _CJK,
    _one_of(_SIGN_AND_WORD, r" ?[\p{P}\p{S}]+[\r\n]*", _LINES, _SPACES),
)
SPARK_2_5: Final = (
    _THREE_DIGITS,
    _CJK,
    _one_of(_SIGN_AND_WORD, r" ?[\p{P}\p{S}]+", r"[\r\n]", _SPACES),
    DIGIT,
)
# Digits by threes, counted from the end of the number.
DIGITS_FROM_THE_END: Final = CutBehind(r"(?<!\p{N})\p{N}{1,2}(?=(?:\p{N}{3})*+(?!\p{N}))|\p{N}{3}")
AFMOE: Final = (
    DIGITS_FROM_THE_END,
    "[一-鿿㐀-䶿\uf900-\ufaff぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-\ud7af\u1100-\u11ff]+",
    DEEPSEEK_V3[-1],
)
SUPERBPE_DIGITS: Final = CutBehind(
    r"(?:(?<![0-9])[0-9]{1,2}|[^0-9])(?=(?:[0-9]{3})++(?![0-9]))|[0-9]{3}(?=[0-9]{3})"
)

FALCON_SIGNS: Final = r"[\p{P}$+<=>^~|`]+"
DEFAULT_SIGNS: Final = r"[\p{P}$+<=>^~|]+"
ASCII_THREE_DIGITS: Final = "[0-9][0-9][0-9]"
SENTENCE_PARTS: Final = r" ?[^(\s|.,!?…。，、।۔،)]+"
CHAMELEON: Final = (
    "<sentinel:[0-9]+>",
    "IMGIMG[A-I]{1,4}Z",
    r"[\t\n]|    |  ",
    DIGIT,
    r"[\p{P}!-/:-@\[-`{-~]",
    GPT_2,
)
