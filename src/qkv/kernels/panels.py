"""Weights laid out for the matrix kernels: panels of output columns, as numbers or as int8 codes."""

from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from qkv.errors import OptionError, ShapeError
from qkv.kernels.host import HOST_TILE, Tile

Form = Literal["float32", "bfloat16", "int8"]

FORMS: dict[np.dtype[Any], Form] = {
    np.dtype(np.float32): "float32",
    np.dtype(np.uint16): "bfloat16",
    np.dtype(np.int8): "int8",
}

GROUP = 32
"""Steps of the inner axis that share one scale in int8 weights."""

CODE_LIMIT = 127


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """A weight matrix as the kernels read it: panels of output columns, each inner step side by side.

    Parameters
    ----------
    panels : (panels, E_in, columns) float32, uint16 (the bits of bfloat16) or int8
        Columns past E_out are 0.
    scales : (panels, groups, columns) float32
        Of int8 codes, one for each group of `GROUP` inner steps; no groups in the other forms.
    shape : (int, int)
        E_out and E_in.
    tile : Tile
        The rectangle of registers that the panels were cut for.
    """

    panels: NDArray[Any]
    scales: NDArray[np.float32]
    shape: tuple[int, int]
    tile: Tile

    @property
    def form(self) -> Form:
        """How the weights are stored."""
        return FORMS[self.panels.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of weights, scales and padding."""
        return self.panels.nbytes + self.scales.nbytes

    def stored(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return numbers or codes (E_out, E_in) and scales (E_out, groups) as float32, row by row."""
        return self._rows(self._widened(self.panels)), self._rows(self.scales)

    def unpack(self) -> NDArray[np.float32]:
        """Return the weights, (E_out, E_in): exactly what was stored, int8 codes times their scales."""
        numbers, scales = self.stored()
        if self.form == "int8":
            numbers *= np.repeat(scales, GROUP, axis=1)[:, : self.shape[1]]
        return numbers

    def rows(self, ids: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return some rows, (len(ids), E_in), as `unpack` gives them: what is asked of a table of vectors."""
        panel, column = np.divmod(ids, self.tile.columns)
        numbers = self._widened(self.panels[panel, :, column])
        if self.form == "int8":
            numbers *= np.repeat(self.scales[panel, :, column], GROUP, axis=1)[:, : self.shape[1]]
        return numbers

    def _widened(self, panels: NDArray[Any]) -> NDArray[np.float32]:
        return (panels.view(ml_dtypes.bfloat16) if self.form == "bfloat16" else panels).astype(np.float32)

    def _rows(self, panels: NDArray[Any]) -> NDArray[Any]:
        num_panels, length, columns = panels.shape
        by_column = panels.swapaxes(1, 2).reshape(num_panels * columns, length)
        return np.ascontiguousarray(by_column[: self.shape[0]])


def pack(weight: NDArray[Any], form: Form = "float32", tile: Tile = HOST_TILE) -> PackedWeight:
    """Lay a weight matrix out for `matmul`, once, when it is loaded.

    An int8 code is the nearest whole number to ``weight / scale``; a scale is the largest magnitude of its
    group of `GROUP` inner steps over 127. No weight is off by more than half its scale, so a result is off
    by at most ``sum over groups of scale/2 * sum |x|``, beside the rounding of its sum.

    Parameters
    ----------
    weight : (E_out, E_in) float32 or bfloat16
        As checkpoints store it.
    form : "float32", "bfloat16" or "int8"
        How to store it: exactly, rounded to the nearest bfloat16, or as codes.
    tile : Tile
        The rectangle of registers to cut the panels for.

    Returns
    -------
    PackedWeight

    Raises
    ------
    ShapeError
        If the weight is no matrix.
    TypeError
        If it is neither float32 nor bfloat16.
    OptionError
        For an unknown form, or int8 of weights that are not finite.

    Examples
    --------
    >>> import numpy as np
    >>> packed = pack(np.array([[127.0, -63.6, 0.4]], np.float32), "int8")
    >>> packed.shape, packed.unpack().tolist()
    ((1, 3), [[127.0, -64.0, 0.0]])
    """
    if weight.ndim != 2:
        raise ShapeError(f"a weight must be (E_out, E_in), got shape {weight.shape}; try reshape")
    if weight.dtype not in (np.float32, ml_dtypes.bfloat16):
        raise TypeError(f"a weight must be float32 or bfloat16, got {weight.dtype}; try astype('float32')")
    if form not in _STORED:
        raise OptionError(f"form must be one of {', '.join(_STORED)}, got {form!r}")
    E_out, E_in = weight.shape
    num_panels = -(-E_out // tile.columns)
    num_groups = -(-E_in // GROUP) if form == "int8" else 0
    panels = np.zeros((num_panels, E_in, tile.columns), _STORED[form])
    scales = np.zeros((num_panels, num_groups, tile.columns), np.float32)
    for number in range(num_panels):
        rows = weight[number * tile.columns :][: tile.columns]
        stored, row_scales = _stored(rows, form)
        panels[number, :, : len(rows)] = stored.T
        scales[number, :, : len(rows)] = row_scales.T
    return PackedWeight(panels, scales, (E_out, E_in), tile)


_STORED = {"float32": np.float32, "bfloat16": np.uint16, "int8": np.int8}


def _stored(rows: NDArray[Any], form: Form) -> tuple[NDArray[Any], NDArray[np.float32]]:
    if form == "int8":
        return quantise(rows.astype(np.float32))
    no_scales = np.zeros((len(rows), 0), np.float32)
    if form == "bfloat16":
        return rows.astype(ml_dtypes.bfloat16).view(np.uint16), no_scales
    return rows.astype(np.float32), no_scales


def quantise(rows: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return int8 codes (rows, E_in) and a scale for each `GROUP` of them (rows, groups)."""
    if not np.isfinite(rows).all():
        raise OptionError("int8 weights must be finite, got NaN or infinity; try form='float32'")
    num_rows, E_in = rows.shape
    padded = np.pad(rows, ((0, 0), (0, -E_in % GROUP))).astype(np.float64)
    groups = padded.reshape(num_rows, -(-E_in // GROUP), GROUP)
    # Below the smallest normal number a scale would lose bits, and codes of 0 need no other care.
    smallest = np.finfo(np.float32).smallest_normal
    scales = np.maximum(np.abs(groups).max(axis=2) / CODE_LIMIT, smallest).astype(np.float32)
    codes = np.rint(groups / scales[:, :, None]).astype(np.int8)
    return codes.reshape(num_rows, -1)[:, :E_in], scales
