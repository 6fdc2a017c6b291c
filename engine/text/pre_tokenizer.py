"""How each family of BPE vocabularies cuts text into words before merging.

One row per `tokenizer.ggml.pre` that llama.cpp knows, but for `whitespace`, whose vocabularies are
another kind. A wrong row does not fail, it makes the model answer worse: hence no fallback, and
golden data. The expressions are word_patterns.py's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.pre_tokenizers import PreTokenizer as Splitter

from engine.errors import ConfigError, UnsupportedModel
from engine.text import word_patterns as words


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One family's rules.

    patterns:      Oniguruma expressions; each cuts the pieces that the one before it left.
    ignore_merges: a piece that is itself in the vocabulary is one token, whatever the merges say;
                   without byte_letters only one of newlines.
    add_bos:       whether a prompt starts with BOS when the file has no `add_bos_token`; without
                   byte_letters whatever that says, as those files are wrong.
    byte_letters:  tokens are spelled in a letter for each byte, as GPT-2's. If not, in characters,
                   as SentencePiece's, and lines are merged as a whole.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    byte_letters: bool = True

    def splitter(self) -> Splitter:
        """The rules for the `tokenizers` library, bytes turned to letters where they want it."""
        steps: list[Splitter] = [_split(pattern) for pattern in self.patterns]
        if self.byte_letters:
            steps.append(ByteLevel(add_prefix_space=False, use_regex=False))
        return Sequence(steps)


def _split(pattern: str) -> Splitter:
    behind = isinstance(pattern, words.CutBehind)
    return Split(Regex(pattern), "merged_with_previous" if behind else "isolated")


_GPT_2 = PreTokenizer((words.GPT_2,))
_DIGIT_GPT_2 = PreTokenizer((words.DIGIT, words.GPT_2))
_LLAMA_3 = PreTokenizer((words.LLAMA_3,))
_LLAMA_3_WITH_BOS = PreTokenizer((words.LLAMA_3,), ignore_merges=True, add_bos=True)
_QWEN_2 = PreTokenizer((words.QWEN_2,))
_DEEPSEEK_V3 = PreTokenizer(words.DEEPSEEK_V3)
_GPT_4O = PreTokenizer((words.GPT_4O,))
_BLOOM = PreTokenizer((words.SENTENCE_PARTS,))
_TINY_AYA = PreTokenizer((words.DIGITS_FROM_THE_END, words.TINY_AYA))
_GEMMA_4 = PreTokenizer((), ignore_merges=True, add_bos=True, byte_letters=False)

PRE_TOKENIZERS: Final[dict[str, PreTokenizer]] = {
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
         "jina-v5-nano"),
        _LLAMA_3_WITH_BOS,
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), _LLAMA_3),
    "glm4": PreTokenizer((words.LLAMA_3,), ignore_merges=True),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan",
         "solar-open", "grok-2", "bailingmoe", "bailingmoe2", "llada-moe"),
        _QWEN_2,
    ),
    "qwen35": PreTokenizer((words.QWEN_35,)),
    **dict.fromkeys(
        ("gpt-2", "phi-2", "jina-es", "jina-de", "jina-v1-en", "jina-v2-es", "jina-v2-de",
         "jina-v2-code", "roberta-bpe", "gigachat", "a.x-4.0", "mellum", "modern-bert", "exaone4",
         "mpt", "olmo", "jais", "trillion", "granite-docling"),
        _GPT_2,
    ),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b",
         "mellum2"),
        _DIGIT_GPT_2,
    ),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _GPT_4O),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _DEEPSEEK_V3),
    "deepseek-llm": PreTokenizer(words.DEEPSEEK_LLM),
    "deepseek-coder": PreTokenizer(words.DEEPSEEK_CODER),
    "spark2_5": PreTokenizer(words.SPARK_2_5),
    "youtu": PreTokenizer((words.YOUTU_SCRIPTS, words.YOUTU), ignore_merges=True),
    "tekken": PreTokenizer((words.TEKKEN,), ignore_merges=True, add_bos=True),
    "granite-embed-multi-97m": PreTokenizer((words.GRANITE_EMBED,), ignore_merges=True),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), _TINY_AYA),
    "kimi-k2": PreTokenizer((words.KIMI_K2,)),
    "superbpe": PreTokenizer((words.DIGITS, words.SUPERBPE_DIGITS)),
    "seed-coder": PreTokenizer((words.SEED_CODER,)),
    "ufakzeka": PreTokenizer((words.UFAKZEKA,)),
    "afmoe": PreTokenizer(words.AFMOE),
    "laguna": PreTokenizer((r"[^\n]+|\n+", words.QWEN_2)),
    "exaone-moe": PreTokenizer((words.EXAONE_MOE,)),
    "minicpm5": PreTokenizer((words.THREE_DIGITS, words.MINICPM_5), ignore_merges=True),
    "jais-2": PreTokenizer((words.JAIS_2,)),
    "falcon": PreTokenizer((words.FALCON_SIGNS, words.GPT_2, words.ASCII_THREE_DIGITS)),
    "chameleon": PreTokenizer(words.CHAMELEON, add_bos=True),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), _BLOOM),
    "viking": PreTokenizer((words.SENTENCE_PARTS, words.DIGIT)),
    **dict.fromkeys(("gemma4", "granite-embed-multi-311m"), _GEMMA_4),
    "sarvam-moe": PreTokenizer((), byte_letters=False),
    "default": PreTokenizer(
        (words.DEFAULT_SIGNS, words.GPT_2, words.DIGITS, words.ASCII_THREE_DIGITS)
    ),
}  # fmt: skip


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
