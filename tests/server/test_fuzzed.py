"""/openapi.json against a server over a tiny real model: what schemathesis makes of it finds no
internal error, no status and no body that is not described.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engine import Engine, EngineConfig
from tests.server.conftest import start
from tests.tiny_gguf import write_tiny_gguf

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_schema_conformance"
)


@pytest.mark.slow
def test_no_request_meets_what_is_not_described(tmp_path: Path) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf", infill=True)
    saved = str(tmp_path / "saved")
    config = EngineConfig(model, disk_bytes=0, n_ctx=256, saved_folder=saved)
    running, stop = start(
        lambda on_load: Engine(config, on_load),
        cache={"saved_folder": saved},
        sampling={"max_tokens": 8},
    )
    try:
        assert running.loaded.wait(300), "the engine does not load"
        url = f"{running.url}/openapi.json"
        command = [Path(sys.executable).with_name("schemathesis"), "run", url, "--checks", CHECKS]
        bounds = ["--max-examples", "20", "--phases", "examples,fuzzing", "--seed", "1"]
        run = subprocess.run(
            [*command, *bounds, "--no-color"],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=tmp_path,
        )
        assert run.returncode == 0, run.stdout[-6000:]
    finally:
        stop()
