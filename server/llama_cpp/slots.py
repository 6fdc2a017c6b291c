"""/slots as llama.cpp's server has it: the chats in memory, saved to files and restored by name.

A slot's number is the chat's place in the list: those that are answered now, then the most recently
used. So 0 is the chat that was just answered. Two more routes list and delete the saved files.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from engine import SavedChat
from server.body import read_json_object
from server.errors import ApiError
from server.openapi import errors_of
from server.services import Services

router = APIRouter()

T = TypeVar("T")

_FOLDER = errors_of({501: "cache.saved_folder is not set."})
_NAMED = _FOLDER | errors_of(
    {
        400: "There is no such slot or file, or it cannot be used.",
        404: "There is no such file.",
        413: "The body is too large.",
        415: "The body is encoded.",
    }
)


@router.get("/slots")
async def slots(request: Request) -> Response:
    """The chats in memory."""
    engine = Services.of(request).loader.engine()
    chats = engine.chats.in_memory()
    return JSONResponse(
        [
            {
                "id": i,
                "n_ctx": engine.model.n_ctx,
                "is_processing": chat.is_running,
                "n_tokens": chat.n_tokens,
                "n_bytes": chat.n_bytes,
            }
            for i, chat in enumerate(chats)
        ]
    )


@router.get("/slots/saved", responses=_FOLDER)
async def saved(request: Request) -> Response:
    """The saved chats, by name."""
    services = Services.of(request)
    engine = services.loader.engine()
    _require_folder(services)
    found = await _ask(engine.chats.saved)
    return JSONResponse({"data": [_describe(chat) for chat in found]})


@router.delete("/slots/saved/{filename}", responses=_NAMED)
async def erase_saved(request: Request, filename: str) -> Response:
    """Delete a saved chat."""
    services = Services.of(request)
    engine = services.loader.engine()
    _require_folder(services)
    return JSONResponse(_describe(await _ask(engine.chats.erase, filename)))


@router.post("/slots/{slot}", responses=_NAMED)
async def act(request: Request, slot: str) -> Response:
    """?action=save or restore with {"filename"}, or erase, which forgets the chat in memory."""
    services = Services.of(request)
    engine = services.loader.engine()
    if not slot.isascii() or not slot.isdigit():
        raise ApiError(400, f"'{slot:.40}' is no slot: a number is", param="id_slot")
    n, action = int(slot[:9]), request.query_params.get("action", "")
    if action == "erase":
        n_erased = await _ask(engine.chats.drop, n)
        return JSONResponse({"id_slot": n, "n_erased": n_erased})
    if action not in ("save", "restore"):
        raise ApiError(400, f"action={action:.40}: save, restore or erase is", param="action")
    _require_folder(services)
    body = await read_json_object(request, services.config.server.max_body_bytes)
    name = body.get("filename")
    if not isinstance(name, str):
        raise ApiError(400, "filename: the name of the saved chat is missing", param="filename")
    start = time.perf_counter()
    if action == "save":
        chat = await _ask(engine.chats.save, n, name)
        counts = {"n_saved": chat.n_tokens, "n_written": chat.n_bytes}
    else:
        chat = await _ask(engine.chats.restore, name)
        n = next((i for i, one in enumerate(engine.chats.in_memory()) if not one.is_running), 0)
        counts = {"n_restored": chat.n_tokens, "n_read": chat.n_bytes}
    took = {f"{action}_ms": round((time.perf_counter() - start) * 1000, 3)}
    return JSONResponse({"id_slot": n, "filename": name, **counts, "timings": took})


def _require_folder(services: Services) -> None:
    if not services.config.cache.saved_folder:
        raise ApiError(
            501,
            "chats cannot be saved here: set cache.saved_folder to the folder for them",
            code="not_supported",
        )


async def _ask(function: Callable[..., T], *args: Any) -> T:
    """Off the loop: it waits for the engine's thread, and for the disk."""
    try:
        return await asyncio.to_thread(function, *args)
    except OSError as error:
        raise ApiError(
            500, f"the disk refused: {error.strerror}", type="server_error", code="disk_error"
        ) from error


def _describe(chat: SavedChat) -> dict[str, Any]:
    return {
        "filename": chat.name,
        "n_tokens": chat.n_tokens,
        "n_bytes": chat.n_bytes,
        "saved_at": int(chat.saved_at),
        "fits": chat.fits,
    }
