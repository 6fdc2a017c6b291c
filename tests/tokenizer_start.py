"""How long a tokenizer takes to be ready, as in a server that starts: in a process of its own. One
that has run thousands of tests was seen to take four times as long.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def loops_to_start(path: Path) -> float:
    """The time that the tokenizer of a GGUF file takes, in loops of plain Python (stopwatch.py)."""
    command = [sys.executable, "-m", "tests.tokenizer_start", str(path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return float(result.stdout)


def main() -> None:
    from engine.files.gguf_file import GGUFFile
    from engine.text.tokenizer import Tokenizer
    from tests.stopwatch import Stopwatch

    with GGUFFile(Path(sys.argv[1])) as gguf, Stopwatch() as watch:
        Tokenizer.from_gguf(gguf)
    print(watch.loops)


if __name__ == "__main__":
    main()
