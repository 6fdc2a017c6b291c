"""Layers whose keys and values lie in the same pages: those that look back on everything, and those
that look back on a window.

Says which pages attention still needs, and from where a chat can go on that has lost others. Knows
neither where pages are nor who has them.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass

from engine.kernels.attention import ALL
from engine.kernels.kv_page import PAGE, layer_bytes, n_pages
from engine.model.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """layers: their numbers. window: tokens that they look back on, the token's own included;
    ALL = every one. page_bytes: of PAGE tokens of all these layers, in whole pages of the system.
    """

    layers: tuple[int, ...]
    window: int
    page_bytes: int

    @property
    def has_window(self) -> bool:
        return self.window < ALL

    def first_page(self, place: int) -> int:
        """The first page that a token at this place looks at."""
        return max(place + 1 - self.window, 0) // PAGE

    def most_pages(self, n_tokens: int, n_read: int) -> int:
        """Pages that a chat of n_tokens needs at once, where n_read are read at a time."""
        return min(n_pages(n_tokens), n_pages(self.window + n_read) + 1)

    def restart(self, held: Sequence[bool], place: int) -> int:
        """The last place up to this one whose window is held. held: of each page."""
        end = min(n_pages(place), len(held))
        while end:
            place = min(place, end * PAGE)
            needed, first = self.first_page(place), end
            while first > needed and held[first - 1]:
                first -= 1
            if first <= needed:
                return place
            end = first - 1  # that page is missing: before it at the latest
        return 0


# A chat's pages are a list [page][group], so that the first tokens' pages are its first entries.
Groups = tuple[LayerGroup, ...]


def group_layers(config: ModelConfig, kv_type: int) -> Groups:
    """The groups of a model, which has one or two. kv_type: of kernels/kv_page.py."""
    one_layer = layer_bytes(kv_type, config.n_head_kv, config.head_dim)
    groups = []
    for window, is_windowed in ((ALL, False), (config.window, True)):
        layers = tuple(i for i in range(config.n_layer) if config.has_window(i) is is_windowed)
        if layers:  # only whole pages of the system can be given back to it
            n_bytes = -(-len(layers) * one_layer // mmap.PAGESIZE) * mmap.PAGESIZE
            groups.append(LayerGroup(layers, window, n_bytes))
    return tuple(groups)


def n_slots(groups: Groups, n_tokens: int) -> int:
    """Entries of the list of pages of a chat of n tokens."""
    return n_pages(n_tokens) * len(groups)


def are_pages_of(groups: Groups, n_tokens: int, sizes: Sequence[int]) -> bool:
    """Whether a chat of n tokens can have a list of pages of these sizes; 0 = it is missing."""
    if len(sizes) != n_slots(groups, n_tokens):
        return False
    for slot, size in enumerate(sizes):
        group = groups[slot % len(groups)]
        if size != group.page_bytes and (size or not group.has_window):
            return False
    return restart_at(groups, [size > 0 for size in sizes], n_tokens) == n_tokens


def restart_at(groups: Groups, held: Sequence[bool], place: int) -> int:
    """The last place up to this one from which a chat can go on. held: of its list of pages, whose
    groups without a window are whole.
    """
    while True:
        places = [
            group.restart(held[g :: len(groups)], place)
            for g, group in enumerate(groups)
            if group.has_window
        ]
        earliest = min(places, default=place)
        if earliest == place:
            return place
        place = earliest


def chat_bytes(groups: Groups, n_tokens: int, n_read: int) -> int:
    """Bytes of the pages that a chat of n_tokens needs, where n_read are read at a time."""
    return sum(group.page_bytes * group.most_pages(n_tokens, n_read) for group in groups)
