"""What all objects of one OpenAI reply share, whichever of the two routes it comes from."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from server.framing import ServerSentEvents
from server.openai.schema import PromptProgress, Usage
from server.progress import Status
from server.reply_events import Ended, Totals
from server.timings import WireTimings

SSE = ServerSentEvents(end=b"data: [DONE]\n\n")


class ReplyHead:
    """include_usage: a last chunk holds the usage, every other one shows a null;
    include_progress: chunks say how far a waiting reply is.
    """

    framing = SSE
    id_prefix: str

    def __init__(self, model: str, include_usage: bool, include_progress: bool) -> None:
        self._head: dict[str, Any] = {
            "id": self.id_prefix + secrets.token_hex(12),
            "created": int(time.time()),
            "model": model,
        }
        self._include_usage = include_usage
        self._include_progress = include_progress
        self._no_usage: dict[str, Any] = {"usage": None} if include_usage else {}

    def _sums(self, ends: Sequence[Ended]) -> dict[str, Any]:
        """What stands in the last object of a reply."""
        totals = Totals.of(ends)
        return {"usage": Usage.of(totals), "timings": WireTimings.of(totals)}

    def _end(self, ends: Sequence[Ended] | None) -> dict[str, Any]:
        """What stands at the end of a choice. ends: given where it is the last one."""
        if ends is None or self._include_usage:
            return self._no_usage
        return {"timings": WireTimings.of(Totals.of(ends))}

    def _progress(self, status: Status) -> dict[str, Any]:
        return {**self._no_usage, "prompt_progress": PromptProgress.of(status)}
