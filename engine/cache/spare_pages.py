"""Gives up pages of layers with a window that no chat's next token looks at: a cache of places to
come back to, which costs nobody anything while there is memory.

Which pages are spare, each chat says for itself (chat.py); when they must go, the cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from engine.cache.chat import Chat
from engine.cache.kv_cache import PagePool


def drop_spare(pool: PagePool, chats: Iterable[Chat], n_marks: int, most_bytes: int) -> None:
    """Free pages until no more than most_bytes are in use, as far as there are any that lie outside
    the windows of all their chats, and of the latest n_marks marks of each.

    chats: whose pages go first, comes first; of each, those of its beginning.
    """
    if pool.used_bytes <= most_bytes:
        return
    spare = {chat: chat.spare_slots(n_marks) for chat in chats}
    votes = Counter(chat.pages[slot] for chat, slots in spare.items() for slot in slots)
    leaving = {page for page, n in votes.items() if n == pool.n_users(page)}
    for chat, slots in spare.items():
        for slot in slots:
            if pool.used_bytes <= most_bytes:
                return
            if chat.pages[slot] in leaving:
                chat.drop(slot)
