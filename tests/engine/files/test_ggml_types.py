"""The numbers of the file format against the gguf package's."""

from __future__ import annotations

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType

from engine.files.ggml_types import FILE_TYPES, GGML_TYPES
from engine.quants import QUANTS


def test_tensor_types_are_those_of_the_gguf_package() -> None:
    theirs = {
        int(number): (GGMLQuantizationType(number).name, *sizes)
        for number, sizes in GGML_QUANT_SIZES.items()
    }
    assert {number: tuple(layout) for number, layout in GGML_TYPES.items()} == theirs


def test_file_types_are_those_of_the_gguf_package() -> None:
    theirs = {
        int(number): number.name.removeprefix("MOSTLY_").removeprefix("ALL_")
        for number in LlamaFileType
        if number is not LlamaFileType.GUESSED
    }
    assert theirs == FILE_TYPES


def test_the_engines_own_records_agree_with_the_table() -> None:
    for number, quant in QUANTS.items():
        layout = GGML_TYPES[number]
        assert (quant.ggml_type, quant.name) == (number, layout.name)
        assert (quant.block_size, quant.block_bytes) == (layout.block_size, layout.block_bytes)
