"""How a page holds its numbers: what is stored for a key or a value, and how it comes back.

A row is the D numbers of one token of one key head; a page holds P rows of keys and P of values.

=========  ==========================  ========================  =================================
element    stored                      bytes beside the codes    largest error
=========  ==========================  ========================  =================================
float32    as it is                    none                      none
fp16       rounded, at most 65504      none                      ``|x| 2**-11``
bf16       rounded                     none                      ``|x| 2**-8``
fp8-e4m3   rounded, at most 448        none                      ``|x| 2**-4``
fp8-e5m2   rounded, at most 57344      none                      ``|x| 2**-3``
int8       -127..127 times a scale     4 a row                   half a scale
int8-kivi  keys: 0..255 steps above    keys: 4 D a page          keys: half a step and the
           the least of a channel;     values: 4 a row           float16 rounding of the least;
           values: as int8                                       values: half a scale
int4       0..15 steps above the       keys: 4 D a page          half a step and the
           least of a channel (keys)   values: 4 a group         float16 rounding of the least
           or of 32 channels (values)
=========  ==========================  ========================  =================================

Relative errors hold above the least normal number of the type; below it the spacing stays what it is there.
Keys have a few channels that are large in every token; a step per channel keeps those from coarsening
the others (Liu et al. 2024, "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache"; Hooper et
al. 2024, "KVQuant"). Such a step needs the tokens it is for, so these pages are encoded once, when full.
The two 8-bit floats are those of Micikevicius et al. 2022, "FP8 Formats for Deep Learning".

In the kernels a query meets the codes of int8, int8-kivi and int4, if its head size is a multiple of 16 or
32, as whole numbers of 16 bits and a scale; so do the weights of values. That rounds each number of a query,
times its channel's step, by at most a 65,534th of the largest: a small part of what the codes have rounded.

What leaves the range of an element is saturated. A NaN comes back as NaN, with all that shares its
scale or step. An infinity does the same to its row of int8; bf16 and float32 hold it, the others saturate it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from qkv.cache.codecs import Asymmetric, Codec, Rounded, Symmetric
from qkv.errors import OptionError


@dataclass(frozen=True)
class Element:
    """How keys and values are stored.

    Parameters
    ----------
    name : str
        Its word in a policy's text.
    keys, values : Rounded, Symmetric or Asymmetric
        Each knows the ``forms`` of what it stores, and how to ``encode`` and ``decode`` rows.
    page_size : int
        P, unless the policy says otherwise.
    closes_pages : bool
        Whether a page is encoded when it is full rather than row by row; until then it holds float32.
    """

    name: str
    keys: Codec = field(repr=False)
    values: Codec = field(repr=False)
    page_size: int = 16
    closes_pages: bool = False


def _rounded(name: str, dtype: Any, largest: float | None = None) -> Element:
    codec = Rounded(np.dtype(dtype), largest)
    return Element(name, codec, codec)


ELEMENTS: Mapping[str, Element] = {
    element.name: element
    for element in (
        _rounded("float32", np.float32),
        _rounded("fp16", np.float16, 65504),
        _rounded("bf16", ml_dtypes.bfloat16),
        _rounded("fp8-e4m3", ml_dtypes.float8_e4m3fn, 448),
        _rounded("fp8-e5m2", ml_dtypes.float8_e5m2, 57344),
        Element("int8", Symmetric(), Symmetric()),
        Element("int8-kivi", Asymmetric(255, "tokens"), Symmetric(), page_size=32, closes_pages=True),
        Element(
            "int4", Asymmetric(15, "tokens"), Asymmetric(15, "channels"), page_size=32, closes_pages=True
        ),
    )
}
"""All element types, by name."""


def element_named(name: str) -> Element:
    """Return the element type of that name.

    Raises
    ------
    OptionError
        If there is none.

    Examples
    --------
    >>> element_named("int4").page_size
    32
    """
    if name not in ELEMENTS:
        raise OptionError(f"no element type is named {name!r}; there are {', '.join(ELEMENTS)}")
    return ELEMENTS[name]
