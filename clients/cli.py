"""The `rushlight` command. One function per command: flags in, the right module called.

Imports are inside the commands, so that each starts with no more than it needs. A UserError is one
line on stderr and exit status 1; wrong usage is 2.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clients.errors import UserError

if TYPE_CHECKING:
    from server.config import AppConfig
    from server.config_sources import Overrides

app = typer.Typer(
    help="A local completion server for old computers: GGUF models on the CPU, OpenAI's API.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ModelArgument = Annotated[Path, typer.Argument(help="A GGUF file.", show_default=False)]
ConfigOption = Annotated[
    Path | None, typer.Option(help="Settings file (default: ./config.toml if there is one)")
]
ThreadsOption = Annotated[
    int | None, typer.Option(min=0, help="Threads; 0 = as many as are fastest")
]
CtxOption = Annotated[
    int | None,
    typer.Option(min=0, help="Tokens a chat may hold; 0 = what fits, up to the model's own"),
]
LoraOption = Annotated[
    list[str] | None,
    typer.Option(help="A LoRA adapter: FILE or FILE:SCALE; may be repeated", show_default=False),
]
SystemOption = Annotated[str | None, typer.Option(help="What the model is told beforehand")]
MaxTokensOption = Annotated[
    int | None, typer.Option(min=1, help="Tokens of a reply at most", show_default=False)
]


def main() -> None:
    """Run the command line and exit."""
    if sys.argv[1:2] == ["serve"]:
        _end_on_sigterm()
    if sys.stdout is None:  # started with standard output closed
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):  # stderr replaces what it cannot encode by itself
        sys.stdout.reconfigure(errors="replace")
    try:
        app(prog_name="rushlight")
    except UserError as error:
        print(f"rushlight: error: {error}", file=sys.stderr)
        sys.exit(1)


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib import metadata

    try:
        version = metadata.version("rushlight")
    except metadata.PackageNotFoundError:  # run from a checkout that is not installed
        version = "unknown"
    print(f"rushlight {version}")
    raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version"),
    ] = False,
) -> None:
    pass


@app.command()
def serve(
    model: Annotated[
        Path | None,
        typer.Argument(
            help="A GGUF file (default: engine.model_path in the settings)", show_default=False
        ),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port; 0 = any free one")
    ] = None,
    config: ConfigOption = None,
    threads: ThreadsOption = None,
    ctx: CtxOption = None,
    lora: LoraOption = None,
    log_level: Annotated[
        str | None, typer.Option(help="debug, info, warning or error", show_default=False)
    ] = None,
) -> None:
    """Serve a model over HTTP until Ctrl-C."""
    from server.run import serve as run

    flags: Overrides = {
        "engine": {
            "model_path": None if model is None else str(model),
            "n_threads": threads,
            "n_ctx": ctx,
            "lora": lora or None,
        },
        "server": {"host": host, "port": port},
        "log": {"level": log_level},
    }
    raise typer.Exit(run(_settings(config, flags)))


@app.command()
def prompt(
    model: ModelArgument,
    text: Annotated[str, typer.Argument(help="What to ask; - reads it from standard input")],
    system: SystemOption = None,
    max_tokens: MaxTokensOption = None,
    temperature: Annotated[float, typer.Option(min=0, help="0 = the likeliest token always")] = 0,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text as it is, without a chat template")
    ] = False,
    config: ConfigOption = None,
    threads: ThreadsOption = None,
    ctx: CtxOption = None,
    lora: LoraOption = None,
) -> None:
    """Ask a model one thing, without a server running."""
    from clients.prompt import ask_once

    if raw and system is not None:
        raise typer.BadParameter("--system needs a chat template, which --raw leaves out")
    asked = sys.stdin.read() if text == "-" else text
    messages = [{"role": "system", "content": system}] if system is not None else []
    messages.append({"role": "user", "content": asked})
    options: dict[str, Any] = {"temperature": temperature}
    if max_tokens or raw:  # the API's own default for raw text is 16 tokens: too few to be of use
        options["max_tokens"] = max_tokens or 128
    arguments = [str(model)]
    for flag, value in (("--config", config), ("--threads", threads), ("--ctx", ctx)):
        arguments += [] if value is None else [flag, str(value)]
    for adapter in lora or ():
        arguments += ["--lora", adapter]

    _unwind_on_sigterm()
    ask_once(arguments, asked if raw else messages, options)


@app.command()
def chat(
    url: Annotated[str, typer.Option(help="Where the server is")] = "http://127.0.0.1:8080",
    api_key: Annotated[
        str, typer.Option(help="Where it wants one", envvar="RUSHLIGHT_API_KEY")
    ] = "",
    system: SystemOption = None,
    max_tokens: MaxTokensOption = None,
    temperature: Annotated[float | None, typer.Option(min=0, show_default=False)] = None,
) -> None:
    """Talk with the model of a running server."""
    from rich.console import Console

    from clients.chat import Chat
    from clients.client import Client

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # line editing and history for input()
    given = {"max_tokens": max_tokens, "temperature": temperature}
    options = {name: value for name, value in given.items() if value is not None}
    console = Console()
    with Client(url, api_key=api_key) as client:
        with console.status("starting ...") as status:
            for health in client.until_ready():
                status.update(str(health))
        Chat(client, console, system, **options).run(lambda: input("> "))


@app.command()
def bench(
    model: Annotated[
        Path | None, typer.Argument(help="A GGUF file; none with --kernels", show_default=False)
    ] = None,
    config: ConfigOption = None,
    threads: Annotated[
        str, typer.Option(help="Threads, or several numbers of them: 1,2", show_default=False)
    ] = "",
    prompt: Annotated[int, typer.Option(min=1, help="Tokens to prefill")] = 128,
    decode: Annotated[int, typer.Option(min=1, help="Tokens to decode")] = 32,
    reps: Annotated[int, typer.Option(min=1, help="Repetitions; the median counts")] = 3,
    depth: Annotated[
        str,
        typer.Option(
            help="Decode too with so many tokens in the cache: 0,1024,4096", show_default=False
        ),
    ] = "",
    batch: Annotated[
        str, typer.Option(help="Decode so many chats together too: 2,4,8", show_default=False)
    ] = "",
    vs_llama_cpp: Annotated[
        bool, typer.Option("--vs-llama-cpp", help="Measure llama.cpp too, in turn with us")
    ] = False,
    llama_cpp_python: Annotated[
        str,
        typer.Option(
            help="A Python that has llama-cpp-python, if not this one", show_default=False
        ),
    ] = "",
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Measure each tensor type's kernels; needs no model")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="No tables, only lines of JSON")] = False,
    answer_check: Annotated[
        bool,
        typer.Option(
            "--answer-check/--no-answer-check", help="Ask for the capital of France beforehand"
        ),
    ] = True,
) -> None:
    """Measure the engine on this machine.

    Tables come on stderr, and on stdout a line of JSON for each number of threads.
    """
    from rich.console import Console

    from clients.bench import bench_kernels, bench_model, json_line, kernel_table, tables_of

    console = Console(stderr=True)
    engine = _settings(config, {"engine": {}}).engine
    counts = _numbers("--threads", threads, 0) or (engine.n_threads,)
    if kernels:
        if model is not None:
            raise typer.BadParameter("--kernels measures no model")
        report = bench_kernels(counts, reps, console)
        if not json:
            console.print(kernel_table(report))
        print(json_line(report))
        return
    if model is None:
        raise typer.BadParameter("name a GGUF file, or --kernels")
    work: dict[str, Any] = {
        "n_prompt": prompt,
        "n_decode": decode,
        "reps": reps,
        "depths": _numbers("--depth", depth, 0),
        "batches": _numbers("--batch", batch, 1),
        "llama_cpp": llama_cpp_python if vs_llama_cpp or llama_cpp_python else None,
    }
    for report in bench_model(model, counts, work, answer_check, engine.tokenizer_pre, console):
        if not json:
            console.print(*tables_of(report), sep="\n")
        print(json_line(report), flush=True)


@app.command()
def tokenize(
    model: ModelArgument,
    pre: Annotated[
        str, typer.Option(help="Pre-tokenizer to use when the file's own is not known")
    ] = "",
) -> None:
    """Turn lines of JSON like {"text": "..."} on standard input into lines of token ids.

    Other fields: "add_special" (default true: BOS and EOS where the model wants them) and
    "parse_special" (default false: special tokens' texts stay text).
    """
    from clients.token_lines import token_lines

    for ids in token_lines(model, sys.stdin.buffer, pre):
        print(ids, flush=True)


@app.command()
def fetch(
    folder: Annotated[Path, typer.Option("--dir", help="Where models are kept")] = Path("models"),
) -> None:
    """Download the demo model (98 MB), unless it is there; prints its path."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    from clients.fetch_model import SMOLLM2, fetch_model

    _unwind_on_sigterm()
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(SMOLLM2.filename, total=None)

        def show(stage: str, done: int, total: int) -> None:
            bar.update(task, description=f"{stage} {SMOLLM2.filename}", completed=done, total=total)

        path = fetch_model(folder, show)
    print(path)


def _numbers(option: str, text: str, least: int) -> tuple[int, ...]:
    """The numbers of an option like 1,2,4."""
    try:
        numbers = tuple(int(part) for part in text.split(",") if text)
    except ValueError:
        raise typer.BadParameter(f"{option} takes numbers like 1,2,4, not {text!r}") from None
    if any(n < least for n in numbers):
        raise typer.BadParameter(f"{option}: {min(numbers)} is below {least}")
    return numbers


def _settings(config: Path | None, flags: Overrides) -> AppConfig:
    """The settings in force; of the flags, those that are not None count. Raises: UserError."""
    from engine import ConfigError
    from server.config_sources import load_config

    given = {
        section: {key: value for key, value in values.items() if value is not None}
        for section, values in flags.items()
    }
    try:
        return load_config(config, given)
    except ConfigError as error:
        raise UserError(str(error)) from error


def _end_on_sigterm() -> None:
    """Let SIGTERM end this process at once, until the server knows better.

    Process 1 of a container ignores signals without a handler, and the imports take a while.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))


def _unwind_on_sigterm() -> None:
    """Let SIGTERM end this process through its `finally` blocks: they stop children and tidy up."""

    def leave(number: int, frame: object) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)


if __name__ == "__main__":
    main()
