"""Fill-in-the-middle: the prompt that asks a model to write what stands between two texts.

    <prefix> text before <suffix> text after <middle>      the reply goes here

Other texts of interest may stand before that, each as a file where the model knows files:

    <repository> name  <file> its name, its text  <file> ...  <file> name  <prefix> ...

Does not know how text becomes ids, nor how a vocabulary tells which tokens these are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from engine.text.vocabulary import Vocabulary

Encode = Callable[[str], list[int]]

# llama-server's words where nobody names them; an editor sends no name of its project or file.
_REPOSITORY: Final = "myproject\n"
_THIS_FILE: Final = "filename\n"
_SNIPPET: Final = "\n\n--- snippet ---\n\n"

# Of the context: other files have three eighths at most, so that which of them fit does not depend
# on what is typed; an eighth is left for the reply.
_FILES: Final = 3 / 8
_REPLY: Final = 1 / 8
# The text after the cursor may have a quarter of what is left, and more if the other needs less.
_AFTER: Final = 1 / 4
# Of the context that is cut at once: the prompts of one who types on then begin alike.
_STEP: Final = 1 / 16


@dataclass(frozen=True, slots=True)
class InfillTokens:
    """Their ids. repository, file: None where the model knows no files."""

    prefix: int
    suffix: int
    middle: int
    repository: int | None = None
    file: int | None = None

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Self | None:
        """Those of a model; None when it has none of one kind."""
        role = vocabulary.roles.get
        prefix, suffix, middle = map(role, ("fim_pre", "fim_suf", "fim_mid"))
        if prefix is None or suffix is None or middle is None:
            return None
        return cls(prefix, suffix, middle, role("fim_rep"), role("fim_sep"))

    def around(self, before: Sequence[int], after: Sequence[int]) -> list[int]:
        """The prompt, of two texts' ids."""
        return [self.prefix, *before, self.suffix, *after, self.middle]


@dataclass(frozen=True, slots=True)
class OtherFile:
    """A text that the model should know of."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class FittedInfill:
    """A prompt that fits. n_cut: tokens of the texts that had no place in it."""

    prompt_ids: list[int]
    n_cut: int


def fit_infill(
    tokens: InfillTokens,
    encode: Encode,
    before: str,
    after: str,
    files: Sequence[OtherFile],
    n_ctx: int,
) -> FittedInfill:
    """The prompt, without BOS; of what is too long the parts furthest from the cursor are cut, and
    the files that come first.

    encode: the ids of a text that stands alone; n_ctx: that the prompt and its reply may have.
    """
    files_ids, n_files_cut = _fit_files(tokens, encode, files, int(n_ctx * _FILES))
    room = n_ctx - int(n_ctx * _REPLY) - len(files_ids) - len(tokens.around((), ()))
    before_ids, after_ids = encode(before), encode(after)
    n_after = min(len(after_ids), max(int(room * _AFTER), room - len(before_ids)))
    n_before = len(before_ids)
    if (excess := n_before + n_after - room) > 0:
        step = max(int(n_ctx * _STEP), 1)
        n_before = max(n_before - (excess + step - 1) // step * step, 0)
    n_cut = len(before_ids) - n_before + len(after_ids) - n_after + n_files_cut
    around = tokens.around(before_ids[len(before_ids) - n_before :], after_ids[:n_after])
    return FittedInfill([*files_ids, *around], n_cut)


def _fit_files(
    tokens: InfillTokens, encode: Encode, files: Sequence[OtherFile], n_most: int
) -> tuple[list[int], int]:
    """The other files as far as they fit, the last ones before the first ones, and how many tokens
    of them do not.
    """
    if not files:
        return [], 0
    head = [] if tokens.repository is None else [tokens.repository, *encode(_REPOSITORY)]
    tail = [] if tokens.file is None else [tokens.file, *encode(_THIS_FILE)]
    all_ids = [_file(tokens, encode, file) for file in files]
    room = n_most - len(head) - len(tail)
    fitting: list[list[int]] = []  # last one first
    for ids in reversed(all_ids):
        if len(ids) <= room:
            fitting.append(ids)
            room -= len(ids)
    kept = [token_id for ids in reversed(fitting) for token_id in ids]
    return [*head, *kept, *tail] if kept else [], sum(map(len, all_ids)) - len(kept)


def _file(tokens: InfillTokens, encode: Encode, file: OtherFile) -> list[int]:
    if tokens.file is None:
        return encode(f"{_SNIPPET}{file.text}")
    return [tokens.file, *encode(f"{file.name}\n{file.text}")]
