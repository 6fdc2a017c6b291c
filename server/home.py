"""GET /: a small page that says what runs here, for people who open the address in a browser."""

from __future__ import annotations

from html import escape
from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from server.errors import ModelLoading
from server.services import Services

router = APIRouter()

_PAGE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Rushlight</title>
<style>
  :root {{ color-scheme: light dark }}
  body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 40rem; margin: 2rem auto }}
</style>
<h1>Rushlight is running</h1>
<p>{state}</p>
<p>It speaks the APIs of OpenAI (<code>/v1</code>), Anthropic (<code>/v1/messages</code>), Ollama
(<code>/api</code>) and llama-server (<code>/completion</code>, <code>/infill</code>).
<a href="docs">All routes</a>, <a href="health">health</a>,
<a href="metrics">metrics</a>, <a href="v1/memory">memory</a>.</p>
"""


@router.head("/", include_in_schema=False)
@router.get("/", include_in_schema=False)
async def home(request: Request) -> HTMLResponse:
    """The page."""
    headers = {"Content-Security-Policy": "default-src 'self' 'unsafe-inline'"}
    return HTMLResponse(_PAGE.format(state=_state(request)), headers=headers)


def _state(request: Request) -> str:
    try:
        engine = Services.of(request).loader.engine()
    except ModelLoading as error:
        return escape(error.message)
    if engine.failure is not None:
        return f"The engine has stopped: {escape(str(engine.failure))}"
    info = engine.model
    return (
        f"<b>{escape(info.name)}</b>: {escape(info.architecture)}, {escape(info.file_type)}, "
        f"{info.n_params / 1e9:.2f} billion weights, a context of {info.n_ctx} tokens. "
        f"{engine.n_running} requests run, {engine.n_waiting} wait."
    )
