"""POST /infill: the text between two others, for editors.

They send what stands before and after the cursor, the beginning of its line, and pieces of other
files; and, without a reply (`n_predict` 0), only those files, to have them in the cache.
"""

from __future__ import annotations

from typing import Any, ClassVar

from fastapi import APIRouter, Request, Response
from pydantic import Field

from engine import OtherFile, SamplingParams
from server.answer import answer
from server.ask import Ask, InfillPrompt
from server.errors import ApiError
from server.llama_cpp.errors import LlamaError, llama_error
from server.llama_cpp.fields import NativeBody
from server.llama_cpp.objects import NativeEncoder
from server.llama_cpp.schema import AnyCompletion, AnyPiece
from server.middleware import errors_as
from server.openapi import described
from server.request_object import RequestObject
from server.services import Services

router = APIRouter(dependencies=[errors_as(llama_error)])


class ExtraFile(RequestObject):
    """time: when it was looked at; editors send it, and nobody needs it."""

    text: str
    filename: str | None = None
    time: Any = None


class InfillRequest(NativeBody):
    """Body of POST /infill. prompt: goes on from input_prefix; what is written goes on from it."""

    elsewhere: ClassVar[dict[str, str]] = {
        "messages": "/v1/chat/completions",
        "suffix": "/v1/completions",
        "echo": "/v1/completions",
        "best_of": "/v1/completions",
    }

    input_prefix: str
    input_suffix: str
    input_extra: list[ExtraFile] = Field(default_factory=list)
    prompt: str = ""

    def ask(self, defaults: SamplingParams) -> Ask:
        files = [OtherFile(file.filename or "tmp", file.text) for file in self.input_extra]
        return Ask(
            [InfillPrompt(self.input_prefix + self.prompt, self.input_suffix, files)],
            self.sampling_params(defaults),
            self.options(),
            n=self.n or 1,
            constraint=self.constraint(),
            show_prompt=self.wants_prompt,
        )


@router.post(
    "/infill",
    **described(
        InfillRequest,
        AnyCompletion,
        AnyPiece,
        LlamaError,
        also={501: "The model has no tokens for filling in the middle."},
    ),
)
async def infill(request: Request) -> Response:
    """Write what stands between two texts."""
    services = Services.of(request)
    if not services.loader.engine().can_infill:
        raise ApiError(
            501,
            "this model has no tokens for filling in the middle; models for code have, as "
            "Qwen2.5-Coder",
            code="not_supported",
        )
    return await answer(
        request,
        InfillRequest,
        lambda body, engine: NativeEncoder(engine, body, body.sampling_params(services.defaults)),
    )
