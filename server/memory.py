"""GET /v1/memory: what the process's memory is used for, measured now."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response

from engine import MemoryReport
from server.services import Services
from server.wire_object import WireObject

router = APIRouter()


class ChatUse(WireObject):
    """A page that k chats share counts a k-th for each."""

    n_tokens: int
    n_bytes: int
    is_processing: bool


class MemoryUse(WireObject):
    """Bytes. weights, libraries, kv, workspace and process add up to rss, the last three of them to
    anonymous. weights_cached: of the model's file, in the page cache; null = nobody can tell.
    """

    rss: int
    anonymous: int
    weights: int
    libraries: int
    kv: int
    workspace: int
    process: int
    weights_mapped: int
    weights_cached: int | None
    kv_limit: int
    disk_cache: int
    chats: list[ChatUse]

    @classmethod
    def of(cls, report: MemoryReport) -> MemoryUse:
        return cls(
            rss=report.rss,
            anonymous=report.anonymous,
            weights=report.weights,
            libraries=report.libraries,
            kv=report.kv,
            workspace=report.workspace,
            process=report.process,
            weights_mapped=report.weights_mapped,
            weights_cached=report.weights_cached,
            kv_limit=report.kv_limit,
            disk_cache=report.disk_cache,
            chats=[
                ChatUse(n_tokens=chat.n_tokens, n_bytes=chat.n_bytes, is_processing=chat.is_running)
                for chat in report.chats
            ],
        )


@router.get("/v1/memory", response_model=MemoryUse)
async def memory(request: Request) -> Response:
    """What memory is used for, and how much of the weights is in it."""
    report = await asyncio.to_thread(Services.of(request).loader.engine().memory)
    return Response(MemoryUse.of(report).wire(), media_type="application/json")
