"""A process that serves a FakeEngine: `python -m tests.server.fake_serve '{"mode": ..., ...}'`.

mode: how loading goes ("ok", "stuck", "damaged", "bug"), or "stubborn" for an engine that does not
close; script: what the engine does; the rest are sections of settings.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

from engine import GGUFError, LoadProgress
from server.config_sources import load_config
from server.run import serve
from tests.fake_engine import FakeEngine, Script

SCRIPTS = {
    "usual": Script(),
    "endless": Script(("word ",), endless=True, delay_s=0.01),
    "prefill": Script(prefill_s=600),
    "flood": Script(("x" * 100_000,), endless=True, delay_s=0.001),
}


def main(mode: str = "ok", script: str = "usual", **overrides: dict[str, Any]) -> int:
    """Serve; returns the exit status."""

    def make_engine(on_load: Any) -> Any:
        on_load(LoadProgress("opening model", 0, 1))
        on_load(LoadProgress("compiling kernels", 1, 2))
        if mode == "stuck":
            threading.Event().wait()
        if mode == "damaged":
            raise GGUFError(Path("x.gguf"), "tensor 'output.weight' lies outside the file")
        if mode == "bug":
            raise KeyError("llama.\ncontext_length")
        engine = FakeEngine(SCRIPTS[script])
        if mode == "stubborn":
            engine.close = lambda **_: threading.Event().wait()  # type: ignore[assignment]
        return engine

    return serve(load_config(overrides=overrides), make_engine)


if __name__ == "__main__":
    sys.exit(main(**json.loads(sys.argv[1])))
