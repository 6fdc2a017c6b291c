"""By what a model's keys and values are known again, in another process or next week."""

from __future__ import annotations

import hashlib

from engine.files.gguf_file import GGUFFile


def fingerprint(gguf: GGUFFile, *settings: object) -> bytes:
    """32 bytes: the same for the same file and the same settings that shape what is kept.

    A file (or each of a split model's) is the same when its header, size and time of modification
    are. Reading gigabytes of weights at each start would cost more than the rare chat that a
    touched file loses; a header alone is shared by fine-tunes of one model.
    """
    digest = hashlib.sha256()
    for part in gguf.parts:
        digest.update(part.header_bytes.data)
        digest.update(repr((part.n_bytes, part.modified_ns)).encode())
    digest.update(repr(settings).encode())
    return digest.digest()
