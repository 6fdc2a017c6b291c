"""How each family of BPE vocabularies cuts text into words before merging.

One row per `tokenizer.ggml.pre`. A wrong row does not fail, it makes the model answer worse: hence
no fallback, and golden data. The patterns are those that the models were trained with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.pre_tokenizers import PreTokenizer as Splitter

from engine.errors import ConfigError, UnsupportedModel


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One family's rules.

    patterns:      Oniguruma expressions; each cuts the pieces that the one before it left.
    ignore_merges: a piece that is itself in the vocabulary is one token, whatever the merges say.
    add_bos:       whether a prompt starts with BOS when the file has no `add_bos_token`.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False

    def splitter(self) -> Splitter:
        """The rules for the `tokenizers` library, and the bytes-to-letters step that all share."""
        splits: list[Splitter] = [Split(Regex(pattern), "isolated") for pattern in self.patterns]
        return Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])


_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_GPT_4 = (  # what stands for DIGITS says how many of them stay together
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_LLAMA_3 = PreTokenizer(
    (_GPT_4.replace("DIGITS", r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True
)
_QWEN_2 = PreTokenizer((_GPT_4.replace("DIGITS", r"\p{N}"),))
# Letters that have upper and lower case in the Unicode of its makers. Escapes: NFC changes those.
_DEEPSEEK_LETTERS = (
    r"A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅ"
    r"Ὀ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴ"
    r"ℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_DEEPSEEK_LLM = PreTokenizer((
    r"[\r\n]",
    rf"\s?[{_DEEPSEEK_LETTERS}]+",
    r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
    r"\s+$",
    r"[一-龥ࠀ-一가-\ud7ff]+",
    r"\p{N}+",
))  # fmt: skip

PRE_TOKENIZERS: Final[dict[str, PreTokenizer]] = {
    "llama-bpe": _LLAMA_3,
    "llama3": _LLAMA_3,
    "llama-v3": _LLAMA_3,
    "qwen2": _QWEN_2,
    "deepseek-r1-qwen": _QWEN_2,
    "deepseek-llm": _DEEPSEEK_LLM,
    "falcon": PreTokenizer((r"[\p{P}$+<=>^~|`]+", _GPT_2, "[0-9][0-9][0-9]")),
    "gpt-2": PreTokenizer((_GPT_2,)),
    "smollm": PreTokenizer((r"\p{N}", _GPT_2)),
    "default": PreTokenizer((r"[\p{P}$+<=>^~|]+", _GPT_2, r"\p{N}+", "[0-9][0-9][0-9]")),
}


def choose_pre_tokenizer(name: str, substitute: str = "") -> PreTokenizer:
    """The row called `name`, or the substitute's when there is none.

    Raises UnsupportedModel: neither is there. ConfigError: the substitute is no row.
    """
    if substitute and substitute not in PRE_TOKENIZERS:
        known = ", ".join(PRE_TOKENIZERS)
        raise ConfigError(f"tokenizer_pre = '{substitute}' is no pre-tokenizer; known: {known}")
    try:
        return PRE_TOKENIZERS[name if name in PRE_TOKENIZERS else substitute]
    except KeyError:
        hint = "set engine.tokenizer_pre to use one of these instead"
        raise UnsupportedModel("pre-tokenizer", name, tuple(PRE_TOKENIZERS), hint) from None
