"""The element types that frames can hold, with their codes in the frame header (csrc/abi.h)."""

import ml_dtypes
import numpy as np

__all__ = ["BFLOAT16", "CODES", "FLOATS", "code_of", "dtype_of", "real_dtype", "supported"]

BFLOAT16: np.dtype = np.dtype(ml_dtypes.bfloat16)

_NAMES = {
    1: "int8",
    2: "uint8",
    3: "int16",
    4: "uint16",
    5: "int32",
    6: "uint32",
    7: "int64",
    8: "uint64",
    9: "float16",
    11: "float32",
    12: "float64",
    13: "complex64",
    14: "complex128",
}
_BFLOAT16_CODE = 10

CODES: dict[np.dtype, int] = {np.dtype(name): code for code, name in _NAMES.items()} | {
    BFLOAT16: _BFLOAT16_CODE
}
_DTYPES = {code: dtype for dtype, code in CODES.items()}

#: Types that a lossy codec may touch; the others are only ever coded losslessly.
FLOATS = frozenset(d for d in CODES if d.kind in "fc" or d == BFLOAT16)


def supported(dtype: np.dtype) -> bool:
    """True if frames can hold this dtype (native byte order only)."""
    return dtype in CODES


def code_of(dtype: np.dtype) -> int:
    """Header code of a dtype; TypeError if there is none."""
    try:
        return CODES[dtype]
    except (KeyError, TypeError):
        names = ", ".join(str(d) for d in CODES)
        raise TypeError(f"dtype {dtype} is not supported; supported are {names}") from None


def dtype_of(code: int) -> np.dtype:
    """The dtype of a header code; KeyError if there is none."""
    return _DTYPES[code]


def real_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype of real and imaginary parts for complex types, the type itself for others."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype
