"""POST /api/generate: Ollama's completions, through the template, raw, or between two texts."""

from __future__ import annotations

from typing import Any, ClassVar

from fastapi import APIRouter, Request, Response

from engine import InvalidRequest, SamplingParams
from server.answer import answer
from server.ask import Ask, ChatPrompt, TextPrompt
from server.middleware import errors_as
from server.ollama.errors import OllamaError, ollama_error
from server.ollama.fields import NoImages, OllamaBody
from server.ollama.objects import Call, GenerateLine, OllamaEncoder
from server.openapi import described

router = APIRouter()


class GenerateRequest(OllamaBody):
    """Body of POST /api/generate. Without a prompt it only asks that the model be loaded."""

    elsewhere: ClassVar[dict[str, str]] = {"messages": "/api/chat"}
    inactive: ClassVar[dict[str, tuple[Any, ...]]] = {
        **OllamaBody.inactive,
        "context": ([],),  # of earlier replies, which here have none: /api/chat goes on
        "template": ("",),
    }
    prompt_field: ClassVar[str] = "prompt"

    prompt: str = ""
    suffix: str = ""
    system: str = ""
    raw: bool = False
    images: NoImages = None

    def ask(self, defaults: SamplingParams) -> Ask:
        prompts = [self._prompt()] if self.prompt or self.suffix else []
        return Ask(prompts, self.params(defaults), constraint=self.constraint())

    def _prompt(self) -> ChatPrompt | TextPrompt:
        if self.system and (self.raw or self.suffix):
            way = "raw" if self.raw else "suffix"
            raise InvalidRequest(f"system has no place in a prompt with {way}", "system")
        if self.raw or self.suffix:
            return TextPrompt(self.prompt, self.suffix)
        system = [{"role": "system", "content": self.system}] if self.system else []
        user = {"role": "user", "content": self.prompt}
        return ChatPrompt([*system, user], effort=self.effort)


class GenerateEncoder(OllamaEncoder[GenerateLine]):
    def line(self, content: str, thinking: str, calls: list[Call], **more: Any) -> GenerateLine:
        said: dict[str, Any] = {"thinking": thinking} if thinking else {}
        return GenerateLine(response=content, **said, **more)


@router.post(
    "/api/generate",
    dependencies=[errors_as(ollama_error)],
    **described(GenerateRequest, GenerateLine, GenerateLine, OllamaError, "application/x-ndjson"),
)
async def generate(request: Request) -> Response:
    """Answer a prompt, as Ollama does."""
    return await answer(
        request, GenerateRequest, lambda body, engine: GenerateEncoder(engine, body)
    )
