"""One mask argument for two things: what may be seen, and what is added to the scores."""

from qkv.ops.arrays import ACCUMULATES_IN, dtype_name
from qkv.shapes import Array, Visible


def mask_or_bias(attn_mask: Array | None) -> tuple[Visible | None, Array | None]:
    """Tell the two meanings of an ``attn_mask`` apart by its dtype.

    Parameters
    ----------
    attn_mask : bool or float, optional
        bool, ``True`` = may attend; or float, added to the scores.

    Returns
    -------
    mask, bias : Array or None
        At most one of them is not None.

    Raises
    ------
    TypeError
        If it is neither; PyTorch refuses integers, and ONNX's text gives them no meaning.

    Examples
    --------
    >>> import numpy as np
    >>> mask_or_bias(np.array([0.0, -np.inf]))
    (None, array([  0., -inf]))
    """
    if attn_mask is None:
        return None, None
    name = dtype_name(attn_mask)
    if name == "bool":
        return attn_mask, None
    if name in ACCUMULATES_IN:
        return None, attn_mask
    raise TypeError(
        f"attn_mask must be bool (True = may attend) or floating point (added to the scores), not {name}; "
        f"a 0/1 mask becomes bool with .astype(bool)"
    )
