"""The objects of llama-server's completions, one model each. Knows nothing of how they come."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import RootModel

from server.llama_cpp.settings import GenerationSettings
from server.notes import Notes
from server.openai.logprobs import TopLogprob
from server.openai.schema import PromptProgress
from server.timings import WireTimings
from server.wire_object import WireObject


class ListedToken(TopLogprob):
    id: int


class ScoredToken(ListedToken):
    top_logprobs: list[ListedToken]


class ListedCandidate(WireObject):
    id: int
    token: str
    bytes: list[int]
    prob: float


class DrawnToken(ListedCandidate):
    """With the probability that it was drawn by, after all cuts."""

    top_probs: list[ListedCandidate]


class CompletionPiece(WireObject):
    """More of a choice. tokens_evaluated: of the prompt; timings, prompt_progress (while it waits):
    where they are asked for.
    """

    index: int
    content: str
    tokens: list[int]
    stop: Literal[False]
    id_slot: int
    tokens_predicted: int
    tokens_evaluated: int
    timings: WireTimings | None = None
    completion_probabilities: list[ScoredToken] | list[DrawnToken] | None = None
    prompt_progress: PromptProgress | None = None


class Completion(WireObject):
    """tokens: empty unless they are asked for; tokens_evaluated: of the prompt; tokens_cached: of
    both that are in the cache now; truncated: the context was too small for prompt or reply;
    id_slot: 0 in /slots is the chat that was answered last.
    """

    index: int
    content: str
    tokens: list[int]
    id_slot: int
    stop: Literal[True]
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: GenerationSettings
    prompt: str
    has_new_line: bool
    truncated: bool
    stop_type: Literal["eos", "limit", "word"]
    stopping_word: str
    tokens_cached: int
    timings: WireTimings
    rushlight: Notes | None = None
    completion_probabilities: list[ScoredToken] | list[DrawnToken] | None = None


class SomeFields(RootModel[dict[str, Any]]):
    """Of a Completion, those asked for; one that was asked for as "a/b" is called so."""

    def wire(self) -> str:
        return self.model_dump_json()


class Completions(RootModel[list[Completion | SomeFields]]):
    """Of several prompts, or several choices of one."""

    def wire(self) -> str:
        return f"[{','.join(one.wire() for one in self.root)}]"


class AnyCompletion(RootModel[Completion | SomeFields | Completions]):
    """What a request that is not streamed is answered with."""


class AnyPiece(RootModel[CompletionPiece | Completion | SomeFields]):
    """What a stream consists of."""
