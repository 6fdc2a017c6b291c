"""GGUFFile: metadata and tensors of a model, which is one file or the several of a split one.

Knows the format, not the models.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from engine.errors import GGUFError
from engine.files.gguf_header import TensorInfo
from engine.files.gguf_metadata import Metadata
from engine.files.split_files import open_parts


class GGUFFile(Metadata):
    """An open GGUF model. Its metadata are those of the first part.

    path:     as given: the file, or any part of a split model.
    parts:    its files, in order; one, unless it is split.
    metadata: scalars and strings as Python values, numeric arrays as NumPy arrays (own memory),
              string arrays as StringArray (read from the mapping).
    tensors:  of all parts, by name, in the order of the files.

    Raises GGUFError when a file is missing or damaged or not of this model, UnsupportedModel when
    one holds a tensor type that GGML does not have.
    """

    def __init__(self, path: str | Path) -> None:
        self.parts: Final = open_parts(Path(path))
        super().__init__(Path(path), self.parts[0].metadata)
        self.version: Final = self.parts[0].version
        self.alignment: Final = self.parts[0].alignment
        self.tensors: Final = {name: t for part in self.parts for name, t in part.tensors.items()}
        self._part_of = {name: part for part in self.parts for name in part.tensors}

    @property
    def n_bytes(self) -> int:
        """Size of all files together; 0 after close()."""
        return sum(part.n_bytes for part in self.parts)

    def bytes_of(self, name: str) -> npt.NDArray[np.uint8]:
        """u8[n_bytes] read-only view of a tensor's data in the mapping; keeps the mapping alive.

        Raises GGUFError when there is no such tensor, ValueError after close().
        """
        tensor = self.tensor(name)
        return self._part_of[name].bytes_of(tensor)

    def address(self, name: str) -> int:
        """Memory address of a tensor's data. Valid until close()."""
        return int(self.bytes_of(name).ctypes.data)

    def tensor(self, name: str) -> TensorInfo:
        """The named tensor. Raises GGUFError when there is none."""
        try:
            return self.tensors[name]
        except KeyError:
            raise GGUFError(self.path, f"tensor {name!r} is missing") from None

    def prefetch(self) -> None:
        """Have all files read into the page cache, one after the other (GGUFPart.prefetch)."""
        for part in self.parts:
            part.prefetch()

    def close(self) -> None:
        """Unmap the files, once the last view from bytes_of is gone. Idempotent."""
        for part in self.parts:
            part.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
