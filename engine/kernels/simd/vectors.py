"""Vector and tile types for Numba: a type is a value that the verbs take, as in `load(u8x32, at)`.

L is the profile's own width in 32-bit lanes; types with a fixed number are as wide everywhere, and
LLVM splits them where it must. A tile is a few vectors that stay in registers.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core.imputils import lower_constant
from numba.extending import models, register_model, typeof_impl

from engine.jit import PROFILE

L = PROFILE.lanes

ELEMENTS = {
    "u5": ir.IntType(8), "u6": ir.IntType(8),  # bytes of at most 32, of at most 64
    "u8": ir.IntType(8), "i8": ir.IntType(8), "u16": ir.IntType(16), "i16": ir.IntType(16),
    "u32": ir.IntType(32), "i32": ir.IntType(32), "f16": ir.HalfType(), "f32": ir.FloatType(),
}  # fmt: skip
ELEMENT_BYTES = {
    "u5": 1,
    "u6": 1,
    "u8": 1,
    "i8": 1,
    "u16": 2,
    "i16": 2,
    "u32": 4,
    "i32": 4,
    "f16": 2,
    "f32": 4,
}
I8P = ir.IntType(8).as_pointer()
I32 = ir.IntType(32)


class Vec(types.Type):
    """n elements in one register (or a few): LLVM's <n x element>."""

    def __init__(self, elem: str, n: int) -> None:
        self.elem, self.n = elem, n
        super().__init__(name=f"{elem}x{n}")

    @property
    def ir(self):
        return ir.VectorType(ELEMENTS[self.elem], self.n)


class Tile(types.Type):
    """n vectors of one type, kept in registers: LLVM's [n x <...>].

    In memory they lie in rows of `columns` neighbours.
    """

    def __init__(self, vec: Vec, n: int, columns: int = 1) -> None:
        self.vec, self.n, self.columns = vec, n, columns
        super().__init__(name=f"tile{n}by{columns}({vec.name})")

    @property
    def ir(self):
        return ir.ArrayType(self.vec.ir, self.n)


class Kind(types.Type):
    """The type of a global that holds a Vec or Tile type: u8x32 in `load(u8x32, address)`."""

    def __init__(self, of: Vec | Tile) -> None:
        self.of = of
        super().__init__(name=f"kind({of.name})")


class Lanes:
    """A choice of lanes, for `shuffle`, or a number for each: a module-level constant."""

    def __init__(self, *lanes: float) -> None:
        self.lanes = lanes


class LanesKind(types.Type):
    """The type of a global that holds Lanes."""

    def __init__(self, lanes: tuple[float, ...]) -> None:
        self.lanes = lanes
        super().__init__(name=f"lanes{lanes}")


@register_model(Vec)
@register_model(Tile)
class _ValueModel(models.PrimitiveModel):
    def __init__(self, manager, fe_type):
        super().__init__(manager, fe_type, fe_type.ir)


register_model(Kind)(models.OpaqueModel)
register_model(LanesKind)(models.OpaqueModel)


@typeof_impl.register(Vec)
@typeof_impl.register(Tile)
def _typeof_kind(value, _context):
    return Kind(value)


@typeof_impl.register(Lanes)
def _typeof_lanes(value, _context):
    return LanesKind(value.lanes)


@lower_constant(Kind)
@lower_constant(LanesKind)
def _constant_kind(context, _builder, _type, _value):
    return context.get_dummy_value()


u8x8, u8x16, u8x32 = Vec("u8", 8), Vec("u8", 16), Vec("u8", 32)
u16x8, u16x16, u16x32 = Vec("u16", 8), Vec("u16", 16), Vec("u16", 32)
u32x4, u32x8, u32x16 = Vec("u32", 4), Vec("u32", 8), Vec("u32", 16)
i8x16 = Vec("i8", 16)
i32x8, f32x8 = Vec("i32", 8), Vec("f32", 8)
u8x64, i8x64 = Vec("u8", 64), Vec("i8", 64)
u5x64, u6x64 = Vec("u5", 64), Vec("u6", 64)
i32x16, f32x16 = Vec("i32", 16), Vec("f32", 16)
i8xL, i32xL, f32xL = Vec("i8", L), Vec("i32", L), Vec("f32", L)
u8x4L, i16x2L = Vec("u8", 4 * L), Vec("i16", 2 * L)
