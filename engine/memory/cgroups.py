"""Where the control groups of this process are: Linux's limits on CPU time and memory, v1 and v2.

Knows the folders only, not what is in their files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_GROUP = re.compile(r"^(\d+):(.*?):(.*)$", re.MULTILINE)
_MOUNT = re.compile(r"^\S+ \S+ \S+ (\S+) (\S+) .* - (cgroup2?) \S+ (\S+)$", re.MULTILINE)


def cgroup_directories(root: Path, controller: str) -> Iterator[Path]:
    """This process's own groups that may limit it, and all their visible parents.

    root: where to look for /proc and the cgroups. controller: "cpu" or "memory".
    """
    groups = dict(_groups(root, controller))
    for version, mount_root, mount_point in _mounts(root, controller):
        if version not in groups:
            continue
        try:
            below = PurePosixPath(groups[version]).relative_to(mount_root)
        except ValueError:
            below = PurePosixPath()  # a container that sees the host's path but only its own group
        if ".." in below.parts:
            below = PurePosixPath()  # a group outside of this cgroup namespace
        top = root / mount_point.lstrip("/")
        for part in (below, *below.parents):
            yield top / part


def _groups(root: Path, controller: str) -> Iterator[tuple[int, str]]:
    """(cgroup version, path of the group); lines: '4:cpu,cpuacct:/user' (v1), '0::/user' (v2)."""
    for hierarchy, controllers, path in _GROUP.findall(read_text(root / "proc/self/cgroup")):
        if hierarchy == "0":
            yield 2, path
        elif controller in controllers.split(","):
            yield 1, path


def _mounts(root: Path, controller: str) -> Iterator[tuple[int, str, str]]:
    """(cgroup version, group that is mounted, where) of each mount that may hold limits.

    A line: '32 31 0:29 /group /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu'.
    """
    for group, point, kind, options in _MOUNT.findall(read_text(root / "proc/self/mountinfo")):
        if kind == "cgroup2":
            yield 2, _unescape(group), _unescape(point)
        elif controller in options.split(","):
            yield 1, _unescape(group), _unescape(point)


def _unescape(field: str) -> str:
    """Undo the kernel's octal escapes for space, tab, newline and backslash."""
    for char in " \t\n\\":
        field = field.replace(f"\\{ord(char):03o}", char)
    return field


def read_text(path: Path) -> str:
    """A small file of /proc or a group; "" when there is none."""
    try:
        return path.read_text("utf-8", "surrogateescape")
    except OSError:
        return ""
