"""Chats that had to leave memory, in a folder of bounded size: found again by their tokens, after a
restart too.

Nothing here is ever fatal: a chat that cannot be stored or read is one to read anew. Files that are
damaged are removed; other models' chats are left alone, but count, and the least recently used of
all goes first. Several processes may share a folder. For the engine thread, which only ever reads
here: a chat is written by a thread of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.cache.chat_file import (
    UNFINISHED,
    BadChatFile,
    ChatHeader,
    Ids,
    NotWanted,
    Views,
    file_bytes,
    read_header,
    read_pages,
    write_chat,
)
from engine.cache.common_prefix import count_common_of_arrays
from engine.cache.storing import Storing
from engine.model.layer_groups import Groups, are_pages_of, n_slots, restart_at

log = logging.getLogger("rushlight.engine")

_SUFFIX = ".chat"
_ABANDONED_S = 600.0  # an unfinished file of that age has no writer any more


@dataclass(frozen=True, slots=True)
class Match:
    """A stored chat that begins as a prompt does.

    n_common: tokens they share, up to where the chat can go on from; held: which pages of those
    are stored.
    """

    name: str
    n_common: int
    held: tuple[bool, ...]


class DiskCache:
    """The chats of one model and page layout under `folder`.

    limit_bytes: of all chats in the folder together; 0 = the cache is off.
    key:         32 bytes that name model and layout (fingerprint.py).
    groups:      of the model's layers.
    """

    def __init__(self, folder: Path, limit_bytes: int, key: bytes, groups: Groups) -> None:
        self._folder, self.limit_bytes = folder, limit_bytes
        self._key, self._groups = key, groups
        self._prefix = key.hex()[:16] + "-"  # of our files' names
        # Two threads change it: whoever goes through it takes a list first, at once.
        self._chats: dict[str, ChatHeader] = {}
        self._ignored: set[str] = set()  # bad files that could not be removed
        self._told = ""  # why the last chat could not be stored
        self._seen_ns = -1  # the folder's time of modification when it was last looked at
        if limit_bytes:
            self._open()

    @property
    def n_chats(self) -> int:
        """Stored chats of this model, as far as this process knows."""
        return len(self._chats)

    @property
    def n_bytes(self) -> int:
        """Bytes of those chats' files. Any thread."""
        return sum(chat.n_bytes for chat in list(self._chats.values()))

    def longest_prefix(self, ids: Sequence[int]) -> Match | None:
        """The stored chat from which these ids go on furthest; None = from none."""
        self._look()
        ours = np.asarray(ids, np.int32)
        best: Match | None = None
        for name, chat in list(self._chats.items()):
            n = self._restart(chat, count_common_of_arrays(chat.ids, ours))
            if n > (best.n_common if best else 0):
                held = tuple((chat.sizes[: n_slots(self._groups, n)] > 0).tolist())
                best = Match(name, n, held)
        return best

    def load(self, match: Match, pages: Views, first: int = 0) -> bool:
        """Fill memory with pages of a match, as many as are given, from number `first` on. Returns
        whether it worked: if not, what is in the memory is worthless.
        """
        chat = self._chats.get(match.name)
        if chat is None:
            return False
        path = self._folder / match.name
        try:
            read_pages(path, chat, pages, first)
        except BadChatFile as error:
            self._reject(match.name, error)
            return False
        except OSError as error:  # another process removed it, or the disk is ill
            log.info("a stored chat cannot be read: %s", error)
            self._chats.pop(match.name, None)
            return False
        with contextlib.suppress(OSError):
            os.utime(path)  # recently used
        return True

    def store(self, ids: Sequence[int], pages: Views) -> Storing | None:
        """Begin to keep a chat. None: it is on the disk already, by itself or within a longer one,
        or cannot be.

        pages: those that hold the ids, not to be changed before it is done. Stored chats that are
        beginnings of it are removed then, if it can go on from there as well.
        """
        if not ids or file_bytes(len(ids), pages) > self.limit_bytes:
            return None
        self._look()
        ours = np.asarray(ids, np.int32)
        held = [page is not None for page in pages]
        shorter = []
        for name, chat in list(self._chats.items()):
            n = count_common_of_arrays(chat.ids, ours)
            if n == len(ours) == self._restart(chat, n):
                with contextlib.suppress(OSError):
                    os.utime(self._folder / name)
                    return None
            elif n == len(chat.ids) == restart_at(self._groups, held, n):
                shorter.append(name)
        try:
            return Storing(lambda is_wanted: self._write(ours, pages, shorter, is_wanted))
        except RuntimeError as error:  # no thread more: where memory is short, or threads are
            log.warning("a chat of %d tokens could not be stored: %s", len(ids), error)
            return None

    def _write(
        self, ids: Ids, pages: Views, shorter: Sequence[str], is_wanted: Callable[[], bool]
    ) -> None:
        """Runs on a thread of its own."""
        name = self._prefix + hashlib.sha256(ids.tobytes()).hexdigest()[:32] + _SUFFIX
        path = self._folder / name
        try:
            self._make_folder()
            self._shrink(file_bytes(len(ids), pages))
            write_chat(path, self._key, ids, pages, is_wanted)
            self._chats[name] = read_header(path)
        except NotWanted:
            return
        except (OSError, BadChatFile) as error:
            reason = f"{type(error).__name__} {getattr(error, 'errno', '')}"
            level = logging.DEBUG if reason == self._told else logging.WARNING  # told once
            log.log(level, "a chat of %d tokens could not be stored: %s", len(ids), error)
            self._told = reason
            return
        self._told = ""
        for old in shorter:
            self.remove(old)

    def remove(self, name: str) -> None:
        """Forget a stored chat."""
        self._chats.pop(name, None)
        with contextlib.suppress(OSError):
            (self._folder / name).unlink(missing_ok=True)

    def clear(self) -> None:
        """Forget all chats of this model."""
        for name in list(self._chats):
            self.remove(name)

    def _restart(self, chat: ChatHeader, n: int) -> int:
        """The last place up to n from which a stored chat can go on."""
        return restart_at(self._groups, (chat.sizes > 0).tolist(), n)

    # --- the folder -----------------------------------------------------------------------------

    def _open(self) -> None:
        try:
            self._make_folder()
            for path in self._folder.glob(f".*{UNFINISHED}"):
                if time.time() - path.stat().st_mtime > _ABANDONED_S:
                    path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("no chats are stored under %s: %s", self._folder, error)
        self._look()
        self._shrink()

    def _make_folder(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _look(self) -> None:
        """Take in what other processes did to the folder since the last time."""
        if not self.limit_bytes:
            return
        try:
            now_ns = self._folder.stat().st_mtime_ns
            if now_ns == self._seen_ns:
                return
            names = {name for name in os.listdir(self._folder) if self._is_ours(name)}
        except OSError:
            self._chats.clear()
            return
        self._seen_ns = now_ns
        for gone in self._chats.keys() - names:
            if not (self._folder / gone).exists():  # it may have been written just now
                self._chats.pop(gone, None)
        for name in sorted(names - self._chats.keys() - self._ignored):
            try:
                chat = read_header(self._folder / name)
                fits = are_pages_of(self._groups, len(chat.ids), chat.sizes.tolist())
                if chat.key != self._key or not fits:
                    raise BadChatFile("another model's, under a wrong name")
                self._chats[name] = chat
            except BadChatFile as error:
                self._reject(name, error)
            except OSError as error:
                log.info("a stored chat cannot be read: %s", error)

    def _is_ours(self, name: str) -> bool:
        return name.startswith(self._prefix) and name.endswith(_SUFFIX)

    def _reject(self, name: str, error: BadChatFile) -> None:
        log.warning("%s is removed: %s", self._folder / name, error)
        self._ignored.add(name)
        self.remove(name)

    def _shrink(self, room_bytes: int = 0) -> None:
        """Remove the least recently used chats, whoever's, until there is room for one more."""
        found = []
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.endswith(_SUFFIX) and entry.is_file(follow_symlinks=False):
                    with contextlib.suppress(OSError):
                        status = entry.stat(follow_symlinks=False)
                        found.append((status.st_mtime_ns, entry.name, status.st_size))
        n_bytes = room_bytes + sum(size for _, _, size in found)
        for _, name, size in sorted(found):
            if n_bytes <= self.limit_bytes:
                break
            self.remove(name)
            n_bytes -= size
