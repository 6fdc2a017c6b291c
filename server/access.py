"""Who may ask: API keys, and which web pages of other origins a browser lets in (CORS).

Knows the headers of a request and which routes are for everybody; not how a refusal is told.
"""

from __future__ import annotations

import hmac
from typing import Any, Final

from fastapi import Request
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware

from server.errors import ApiError
from server.services import Services

# Told to everybody: whether it is alive, what runs, and what is in the documentation anyhow.
PUBLIC: Final = frozenset({"/", "/docs", "/health", "/v1/health"})

# What a page may read of a reply's headers beside the few that browsers always show.
_EXPOSED: Final = (
    *("Retry-After", "X-Request-Id"),
    *("X-Rushlight-Ignored", "X-Rushlight-Dropped", "X-Rushlight-Cache"),
)


async def require_key(request: Request) -> None:
    """A dependency of every route: one of server.api_keys, if there are any. Raises: ApiError."""
    keys = Services.of(request).config.server.api_keys
    if not keys or request.scope["route"].path in PUBLIC:
        return
    given = _given_key(request.headers).encode()
    # All are compared, and in constant time: how long it takes tells nothing of them.
    if sum(hmac.compare_digest(given, key.encode()) for key in keys):
        return
    said = "that API key is not one of this server's" if given else "an API key is missing"
    raise ApiError(
        401,
        f"{said}; send 'Authorization: Bearer KEY' with one of server.api_keys",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _given_key(headers: Headers) -> str:
    """As OpenAI's clients send it, or Anthropic's; "" = none."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def cors(origins: list[str]) -> dict[str, Any]:
    """Arguments of `add_middleware`: answers preflights, which carry no key, before all else."""
    return {
        "middleware_class": CORSMiddleware,
        "allow_origins": origins,
        "allow_methods": ["*"],
        "allow_headers": ["*"],  # echoes what is asked for: a literal * would not cover the key
        "expose_headers": _EXPOSED,
        "allow_private_network": True,
    }
