"""Chats that a user saved under a name, as files of one folder. They stay until they are erased.

A name is a file's name and never a path. Only files that are chats are replaced or erased: the
folder may hold other things.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from engine.cache.chat_file import (
    BadChatFile,
    ChatHeader,
    Views,
    read_header,
    read_pages,
    write_chat,
)
from engine.errors import InvalidRequest
from engine.info import SavedChat
from engine.model.layer_groups import Groups, are_pages_of

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. -]{0,126}")  # no separators, no hidden files


class SavedChats:
    """key: of the model's pages (fingerprint.py); groups: of its layers.

    Methods that take a name raise InvalidRequest when it is no name, or not one of a chat here.
    """

    def __init__(self, folder: Path, key: bytes, groups: Groups) -> None:
        self._folder, self._key, self._groups = folder, key, groups

    def all(self) -> list[SavedChat]:
        """By name, those of other models too. Raises OSError when the folder cannot be read."""
        found = []
        for path in sorted(self._folder.iterdir()) if self._folder.exists() else ():
            if _NAME.fullmatch(path.name) and path.is_file():
                try:
                    found.append(self._describe(path, read_header(path)))
                except (BadChatFile, OSError):
                    continue
        return found

    def save(self, name: str, ids: Sequence[int], pages: Views) -> SavedChat:
        """Keep a chat under a name, in place of an older one. Raises OSError: disk full, read-only
        folder.
        """
        path = self._path(name)
        if path.exists():
            self._header(path)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_chat(path, self._key, ids, pages)
        return self._describe(path, read_header(path))

    def open(self, name: str) -> tuple[SavedChat, ChatHeader]:
        """A chat that fits this model."""
        path = self._path(name)
        header = self._header(path)
        chat = self._describe(path, header)
        if not chat.fits:
            raise InvalidRequest(
                f"'{name}' was saved with another model or cache.kv_type", "filename"
            )
        return chat, header

    def read(self, name: str, header: ChatHeader, pages: Views) -> None:
        """Fill memory with the pages of a chat that `open` found."""
        try:
            read_pages(self._path(name), header, pages)
        except BadChatFile as error:
            raise InvalidRequest(f"'{name}' is damaged: {error}", "filename") from None

    def erase(self, name: str) -> SavedChat:
        """Delete a chat's file. Raises OSError: read-only folder."""
        path = self._path(name)
        chat = self._describe(path, self._header(path))
        path.unlink()
        return chat

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise InvalidRequest(
                f"'{name:.40}' is no name for a saved chat: letters, digits and any of _ . - or"
                " space, at most 127, and not a dot, hyphen or space first",
                "filename",
            )
        return self._folder / name

    def _header(self, path: Path) -> ChatHeader:
        try:
            return read_header(path)
        except FileNotFoundError:
            raise InvalidRequest(f"there is no saved chat '{path.name}'", "filename") from None
        except (BadChatFile, IsADirectoryError) as error:
            raise InvalidRequest(f"'{path.name}' is no saved chat: {error}", "filename") from None

    def _describe(self, path: Path, header: ChatHeader) -> SavedChat:
        return SavedChat(
            name=path.name,
            n_tokens=len(header.ids),
            n_bytes=header.n_bytes,
            saved_at=path.stat().st_mtime,
            fits=header.key == self._key
            and are_pages_of(self._groups, len(header.ids), header.sizes.tolist()),
        )
