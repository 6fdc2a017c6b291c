"""The README against the code: its tree, and what it says can be served."""

from __future__ import annotations

import re
from pathlib import Path

from engine.model.architectures import ARCHITECTURES
from engine.quants import QUANTS

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("engine", "server", "clients", "tests", "docs", ".ci")
# In one line each: test files mirror the code, and are named after it; results are files alike.
SUMMED_UP = {
    *("tests/engine", "tests/server", "tests/clients", "tests/docs", "tests/golden"),
    "docs/measurements",
}

_LINE = re.compile(r"( *)(\S+)(?: {2,}(.+))?")


def read_tree() -> tuple[set[str], set[str]]:
    """Files and folders of the tree, as paths from the root."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = readme.partition("## The tree")[2].split("```")[1]
    files: set[str] = set()
    folders: set[str] = set()
    above: list[str] = []
    for line in block.strip("\n").splitlines():
        found = _LINE.fullmatch(line)
        assert found, line
        del above[len(found[1]) // 2 :]
        path = "/".join([*above, found[2].rstrip("/")])
        assert found[3] or path in FOLDERS, f"{path} is not explained"
        assert path not in files | folders, f"{path} stands there twice"
        if found[2].endswith("/"):
            folders.add(path)
            above.append(found[2].rstrip("/"))
        else:
            files.add(path)
    return files, folders


def files_of_the_project() -> set[str]:
    """Those in our folders. In the root may lie anything."""
    paths = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file())
    names = {path.relative_to(ROOT).as_posix() for path in paths if path.suffix != ".pyc"}
    return {name for name in names if not name.startswith(tuple(f"{one}/" for one in SUMMED_UP))}


def test_the_tree_names_every_file_and_no_other() -> None:
    files, folders = read_tree()
    in_folders = {file for file in files if "/" in file}
    assert in_folders == files_of_the_project()
    assert [file for file in files - in_folders if not (ROOT / file).is_file()] == []
    assert [folder for folder in folders if not (ROOT / folder).is_dir()] == []
    assert folders >= SUMMED_UP


def test_every_architecture_and_tensor_type_is_named() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in ARCHITECTURES if f"`{name}`" not in readme] == []
    assert [q.name for q in QUANTS.values() if not re.search(rf"\b{q.name}\b", readme)] == []
