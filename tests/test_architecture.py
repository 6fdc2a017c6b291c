"""Who may import whom, and which names exist: the drawing in ARCHITECTURE.md, held to the code."""

import ast
import graphlib
import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("engine", "server", "clients")
FILES = [path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py")]

BANNED_IN_ENGINE = {
    "asyncio",
    "clients",
    "fastapi",
    "httpx",
    "prometheus_client",
    "pydantic",
    "rich",
    "server",
    "starlette",
    "typer",
    "uvicorn",
}
# `serve` and `bench` run an engine here, `tokenize` reads a tokenizer; every other command goes
# through HTTP.
CLIENTS_EXCEPTIONS = {
    Path("clients/cli.py"): {"engine", "server.config", "server.config_sources", "server.run"},
    Path("clients/bench.py"): {
        "engine",
        "engine.bench.kernels",
        "engine.bench.model",
        "engine.memory.cpus",
    },
    Path("clients/token_lines.py"): {"engine", "engine.files.gguf_file", "engine.text.tokenizer"},
}


@dataclass(frozen=True)
class Import:
    """One imported module; `name` is what `from module import name` takes, if it is that."""

    module: str
    name: str | None
    line: int

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]


def parse(file: Path) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"), filename=str(file))


def imports(file: Path) -> Iterator[Import]:
    for node in ast.walk(parse(file)):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, None, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: write imports from the root, not from ."
            assert node.module is not None
            yield from (Import(node.module, alias.name, node.lineno) for alias in node.names)


def in_package(package: str) -> list[Path]:
    return [file for file in FILES if file.parts[0] == package]


def ids(value: object) -> str:
    return str(value)


@pytest.mark.parametrize("file", in_package("engine"), ids=ids)
def test_engine_knows_nothing_of_what_is_around_it(file: Path) -> None:
    assert [i for i in imports(file) if i.package in BANNED_IN_ENGINE] == []


@pytest.mark.parametrize("file", FILES, ids=ids)
def test_only_simd_and_atomics_reach_into_llvm(file: Path) -> None:
    if file.parent != Path("engine/kernels/simd") and file != Path("engine/kernels/atomics.py"):
        assert [i for i in imports(file) if i.package == "llvmlite"] == []


@pytest.mark.parametrize("file", in_package("server"), ids=ids)
def test_server_imports_only_the_public_names_of_engine(file: Path) -> None:
    public = set(importlib.import_module("engine").__all__)
    for found in imports(file):
        assert found.package != "clients", found
        if found.package == "engine":
            assert found.module == "engine", f"{file}: {found} reaches into the engine"
            assert found.name is None or found.name in public, f"{file}: {found} is not public"


@pytest.mark.parametrize("file", in_package("clients"), ids=ids)
def test_clients_speak_http_only(file: Path) -> None:
    allowed = CLIENTS_EXCEPTIONS.get(file, set())
    ours = [i for i in imports(file) if i.package in ("engine", "server")]
    assert [i for i in ours if i.module not in allowed] == []


def test_families_of_apis_know_no_other_but_openais() -> None:
    """OpenAI's shapes are what other routes borrow from; what all of them share knows none."""
    families = {path.parent.name for path in (ROOT / "server").glob("*/__init__.py")}
    assert families >= {"openai", "responses", "anthropic", "ollama"}
    for file in in_package("server"):
        known = families & {file.parts[1]}
        if known or "router = APIRouter(" in (ROOT / file).read_text(encoding="utf-8"):
            known |= {"openai"}
        if file.name == "app.py":
            known = families
        ours = [found for found in imports(file) if found.package == "server"]
        named = {name for found in ours for name in (*found.module.split(".")[1:2], found.name)}
        assert named & families <= known, file


# The folders of the engine: each may know those before it.
LAYERS = (
    "files",
    "memory",
    "kernels",
    "quants",
    "model",
    "cache",
    "text",
    "tool_formats",
    "templates",
    "replies",
    "grammar",
    "sampling",
    "requests",
    "bench",
)


@pytest.mark.parametrize("file", in_package("engine"), ids=ids)
def test_the_folders_of_the_engine_lie_in_layers(file: Path) -> None:
    folder = file.parts[1] if len(file.parts) > 2 else None
    below = LAYERS[: LAYERS.index(folder) + 1] if folder else LAYERS[:-1]
    known = {i.module.split(".")[1] for i in imports(file) if i.module.startswith("engine.")}
    assert known & set(LAYERS) <= set(below), f"{file} reaches into a folder above its own"


def test_tool_formats_know_streamed_text_and_no_model() -> None:
    for file in in_package("engine"):
        if file.parts[1] == "tool_formats":
            ours = {found.module for found in imports(file) if found.package == "engine"}
            assert {m for m in ours if not m.startswith("engine.tool_formats")} == set(), file


def test_engine_all_is_exactly_what_engine_takes_from_its_modules() -> None:
    engine = importlib.import_module("engine")
    taken = [i.name for i in imports(Path("engine/__init__.py")) if i.package == "engine"]
    assert sorted(set(taken), key=str) == sorted(engine.__all__)
    assert len(engine.__all__) == len(set(engine.__all__))
    for name in engine.__all__:
        assert getattr(engine, name) is not None


def test_imports_form_no_cycle() -> None:
    """Within our packages, imports only point down, those inside functions included."""
    modules = {
        ".".join(file.with_suffix("").parts).removesuffix(".__init__"): file for file in FILES
    }
    graph: dict[str, set[str]] = {}
    for module, file in modules.items():
        needed = set()
        for found in imports(file):
            submodule = f"{found.module}.{found.name}"
            needed.add(submodule if submodule in modules else found.module)
        graph[module] = needed & modules.keys() - {module}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle


def test_architecture_names_are_compared_in_one_file() -> None:
    names = set(importlib.import_module("engine.model.architectures").ARCHITECTURES)
    for file in FILES:
        if file == Path("engine/model/architectures.py"):
            continue
        for node in ast.walk(parse(file)):
            if isinstance(node, ast.Compare):
                operands: list[ast.AST] = [node.left, *node.comparators]
            elif isinstance(node, ast.MatchValue):
                operands = [node.value]
            else:
                continue
            constants = {
                part.value
                for operand in operands
                for part in ast.walk(operand)
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
            }
            # A tokenizer's kind is another thing, though one of them is called `llama` as well.
            if any(constant.startswith("tokenizer.") for constant in constants):
                continue
            assert not constants & names, f"{file}:{node.lineno} compares an architecture's name"


@pytest.mark.parametrize("file", FILES, ids=ids)
def test_every_file_is_named_after_one_idea_and_says_which(file: Path) -> None:
    vague = {"util", "utils", "common", "helper", "helpers", "manager", "managers", "misc"}
    assert file.stem not in vague
    assert file.stem not in sys.stdlib_module_names, "hides a standard module when run by its path"
    if (ROOT / file).stat().st_size:
        assert ast.get_docstring(parse(file)), "a module begins with what it does and does not know"


def test_tests_hold_no_packages() -> None:
    """An __init__.py here would hide the packages under test behind those of the same names."""
    assert list((ROOT / "tests").rglob("__init__.py")) == []
