"""What `rushlight bench` shows of a report; the measuring itself is the engine's."""

import json

from rich.console import Console

from clients.bench import json_line, table_of

REPORT = {
    "engine": "rushlight",
    "model": "models/tiny.gguf",
    "threads": 2,
    "prefill_tok_per_s": 210.5,
    "decode_tok_per_s": 42.25,
    "load_s": 0.31,
    "RssAnon": 120,
    "RssFile": 95,
    "bandwidth_gb_per_s": 12.0,
    "decode_gb_per_s": 6.0,
    "of_ceiling": 0.5,
}


def test_the_last_line_is_the_whole_report_as_one_json_object() -> None:
    line = json_line(REPORT)
    assert "\n" not in line
    assert json.loads(line) == REPORT


def test_the_table_shows_each_speed_beside_its_ceiling() -> None:
    console = Console(width=100)
    with console.capture() as captured:
        console.print(table_of(REPORT))
    shown = captured.get()
    assert "tiny.gguf, 2 threads" in shown
    assert "42.25 tok/s" in shown
    assert "50% of this machine's 12.00 GB/s" in shown
