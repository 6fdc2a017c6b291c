"""RequestOptions: what one request asks of the engine beside sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from engine.errors import InvalidRequest

if TYPE_CHECKING:
    from engine.grammar.grammar import Grammar


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What one request asks of the engine beside sampling. The defaults ask for nothing.

    visible_ids:  control tokens whose text is to show in Token.text, such as `ChatFormat`'s; all
                  others are ''. End tokens never show.
    grammar:      the reply is a text of it, unless a limit or a stop string cuts it.
    prompt_logprobs: score the prompt's tokens too, in PromptScored events before the first Token;
                  `n_probs` says with how many alternatives. Nothing of the prompt comes from the
                  cache then.
    use_cache:    off: the whole prompt is read, whatever is in the cache, as to measure that.
    priority:     with the policy "priority" a higher one runs first, and preempts.
    max_time_s:   for queue, prefill and decode together; None = no limit.
    max_write_s:  so long after its first token the reply ends with its line; None = it goes on.
    n_indent:     a line of the reply that begins with fewer spaces or tabs ends it, and is left
                  out; not its first line, which may go on with another.
    replaces_key: a waiting request with the same key is ended by this one.
    Raises InvalidRequest naming a field out of its range.
    """

    visible_ids: frozenset[int] = frozenset()
    grammar: Grammar | None = None
    prompt_logprobs: bool = False
    use_cache: bool = True
    priority: int = 0
    max_time_s: float | None = None
    max_write_s: float | None = None
    n_indent: int = 0
    replaces_key: str | None = None

    def __post_init__(self) -> None:
        if self.max_time_s is not None and not 0 < self.max_time_s < 1e7:  # NaN fails too
            raise InvalidRequest(
                f"max_time_s must be more than 0 and less than 10000000, not {self.max_time_s}",
                param="max_time_s",
            )
        if self.n_indent < 0:
            raise InvalidRequest(f"n_indent must be at least 0, not {self.n_indent}", "n_indent")


DEFAULT_OPTIONS: Final = RequestOptions()
