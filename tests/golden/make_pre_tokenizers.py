"""Makes pre_tokenizers.json: how llama.cpp cuts telling texts, for every pre-tokenizer it knows.

    python tests/golden/make_pre_tokenizers.py [OUT.json [RANDOM_TEXTS]]

with llama-cpp-python and gguf installed. The vocabulary is made here: merges learnt from the texts
themselves without any cutting, so that they would run on over every place where a pre-tokenizer
cuts, and the ids show where it did.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path

import llama_cpp

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from gguf import TokenType

from tests.vocab_gguf import letters, write_characters_gguf, write_vocab_gguf

OUT = Path(__file__).with_name("pre_tokenizers.json")
N_MERGES = 1200

# Every name in llama.cpp's source but `whitespace`, whose vocabularies are of a kind of their own.
BYTES = """
llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano deepseek-llm
deepseek-coder deepseek-v3 spark2_5 youtu falcon mpt starcoder gpt-2 phi-2 jina-es jina-de gigachat
jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert jais-2 jina-v1-en jina-v2-code roberta-bpe refact
command-r qwen2 deepseek-r1-qwen kormo f2llmv2 qwen35 stablelm2 olmo dbrx smaug-bpe poro-chat glm4
chatglm-bpe viking jais tekken smollm codeshell bloom gpt3-finnish exaone exaone4 exaone-moe
chameleon minerva-7b megrez gpt-4o llama4 kanana2 talkie granite-embed-multi-97m tiny_aya cohere2moe
superbpe trillion granite-docling bailingmoe bailingmoe2 llada-moe seed-coder hunyuan hunyuan-dense
hy_v4 joyai-llm kimi-k2 ufakzeka grok-2 afmoe laguna minimax-m2 solar-open mellum2 minicpm5 default
""".split()  # noqa: SIM905
CHARACTERS = ["gemma4", "granite-embed-multi-311m", "sarvam-moe"]

TEXTS = [
    "I'll I'LL we've WE'VE it's IT'S I'm I'D don't 'tis x's' l'eau Türkiye'nin 'ſ",
    "1 12 123 1234 12345 123456 1234567 3.14 1,234 a1b22c333 1234a 12_34 x12345678",
    "٣ ١٢٣٤٥ ½ 100² 1000² ²1000 123²456 Ⅷ 五 1１2２3３",
    "  a   b    c     d\t\te\u00a0f\u00a0\u00a0g\u2003h \u3000i\u0085j",
    "x\n\ny\n  z\r\n\r\n w \n \n\n\t\n v  \n",
    "'tis 'twas 'tis 'twas 'master 'dog 'they 'tis", "a;\nb;\nc!\nd!\n;\r\n!\n\n;\n",
    f"a{' ' * 3}b{' ' * 6}c{' ' * 9}d{' ' * 21}e{' ' * 70}\n{' ' * 11}f{' ' * 13}",
    "\n\n\n  \n", " ", "     ", " " * 21, "\t \t", "\r\n",
    "!?... (x) [y] {z} a.b a-b a_b a/b //c/ /\n// \n;;\n/ x!!\n y/!\n",
    "a+b=c <tag> $5 ^ ~ ~~x =~= |`| `x` x|y <|a|> @home #1 &amp; 50% *b* \\n \"q\"",
    "!abc .py :-) -5 --flag (Hello) _x_ 'quoted' ~é €5 £x ©y 🦙z",
    "camelCase HTTPServer iPhone ABCdef aBC XMLHttpRequest's ÉCOLE École éA Éa ÀÉa",
    "Привет МИР приветМир Ёлка Γειά ΣΟΥ ΓειάΣου ǅ ᾳ ꟻ",
    "漢字かな交じり文。東京、 カタカナー 한국어 조선말 ㄱㄴ ㄅㄆ 𠀀𪜀 、〜 「x」 ！？…—“a”",
    "កាន់តែពិសេស हिन्दी में নমস্কার ไทย ລາວ မြန်မာ עִבְרִית العَرَبِيَّة",
    "e\u0301 a\u0301b \u0301x 1\u0301 \u0300\u0301 n\u0303o a\u200db x\u200by \u202ez",
    "🦙.cpp 👩‍👩‍👧 🇩🇪 ❤️ x🙂y 🙂🙂 ☃ ♔♕ ∑x∞ ➊",
    "<sentinel:12> IMGIMGABCDZ IMGIMGZ    four  two\tx",
    "a|b (c) d.e f,g h!i?j…k。l，m、n।o۔p،q r",
    "def f(x):\n    return x  # why\n\n\nclass A:\n\tpass\r\n",
    "https://a.bc/d?e=f&g=1 user@x.org C:\\dir {\"k\": [1, null]} x=1;y=22;",
    "\x00\x01\x1f\x7f\x80\x9f a\x00b \ufeffx \ufffd \ue000 \u0378 \U000e0001",
    "ａｂＣ１２３ ｶﾅ ĳ ﬁ ª º µ Ω K ſ ʰ ː ˈx ᵃ",
    "aaaaaaaaaaaaaaaaaaa AAAAAAAAAAAAAAAA 99999999999999999999 ----------------- \n\n\n\n\n\n\n\n",
]  # fmt: skip

NEWLINES = dict.fromkeys(("\n", "\n\n", "\n\n\n"), TokenType.NORMAL)  # no merges make these

FRAGMENTS = [*" \n\t\r'.,!-/_~$^|<(", " ", "  ", "\r\n", "\u00a0", "'s", "'LL", "'", "a", "b", "A",
             "Z", "é", "É", "я", "Я", "漢", "か", "가", "ก", "\u0301", "क", "\u093e", "1", "23",
             "456", "٣", "½", "²", "🙂", "\u200d", "€", "。", "“", "、", "ʰ", "ǅ", "\x00", "\u0378",
             "the", "The", "<sentinel:1>", "IMGIMGAZ"]  # fmt: skip


def main(out: Path = OUT, n_random: int = 12) -> None:
    rng = random.Random(1)
    texts = TEXTS + ["".join(rng.choices(FRAGMENTS, k=40)) for _ in range(n_random)]
    bytes_merges = learn_merges([letters(text) for text in texts])
    # A zero byte ends a string in its reader of vocabularies.
    lines = "\n".join(texts).replace(" ", "▁").replace("\0", "").split("\n")
    characters_merges = learn_merges(lines)
    families: dict[str, list[str]] = {}  # ids of all texts, as JSON -> who cut them so
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "vocab.gguf")
        for pre in BYTES:
            write_vocab_gguf(path, {"<s>": TokenType.CONTROL}, bytes_merges, pre=pre, bos="<s>")
            families.setdefault(encode(path, texts), []).append(pre)
        for pre in CHARACTERS:
            write_characters_gguf(path, characters_merges, NEWLINES, pre=pre)
            families.setdefault(encode(path, texts), []).append(pre)
    cases: list[dict[str, list[str]]] = [{} for _ in texts]  # of each text the same by family
    for ids, names in families.items():
        for case, one in zip(cases, json.loads(ids), strict=True):
            case.setdefault(compact(one), []).append(names[0])
    parts = {
        "source": f"ids by llama.cpp (llama-cpp-python {llama_cpp.__version__})",
        "bytes_merges": bytes_merges,
        "characters_merges": characters_merges,
        "families": {names[0]: names for names in families.values()},
    }
    lines = [f'"{key}": {compact(value)}' for key, value in parts.items()]
    rows = [
        f'{{"text": {compact(text)},\n "ids": ['
        + ",\n  ".join(f"[{compact(names)}, {ids}]" for ids, names in case.items())
        for text, case in zip(texts, cases, strict=True)
    ]
    body = ",\n".join([*lines, '"cases": [\n' + "]},\n".join(rows)])
    out.write_text(f"{{{body}]}}]}}\n", encoding="utf-8")


def compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def learn_merges(texts: list[str]) -> list[str]:
    """The merges of the pairs that are most frequent, one after the other."""
    parts = [list(text) for text in texts]
    merges = []
    while len(merges) < N_MERGES:
        counts = Counter(pair for one in parts for pair in pairwise(one))
        a, b = max(counts, key=lambda pair: (counts[pair], pair))
        merges.append(f"{a} {b}")
        for one in parts:
            for i in range(len(one) - 2, -1, -1):
                if one[i : i + 2] == [a, b]:
                    one[i : i + 2] = [a + b]
    return merges


def encode(path: Path, texts: list[str]) -> str:
    """Ids of each text, without BOS, as one line of JSON."""
    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    ids = [model.tokenize(text.encode(), add_bos=False, special=False) for text in texts]
    return compact(ids)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]), *map(int, sys.argv[2:3]))
