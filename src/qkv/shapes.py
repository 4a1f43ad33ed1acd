"""The dimension key: one letter per axis, the same everywhere.

=====  =====================  =====  =====================
``B``  batch                  ``E``  model width
``H``  query heads            ``F``  MLP width
``G``  key/value heads        ``V``  vocabulary
``T``  query positions        ``L``  layers
``S``  key positions          ``N``  pages
``D``  head size              ``P``  page size
=====  =====================  =====  =====================

An array is of any kind that speaks the Array API (NumPy, PyTorch, JAX, ...): what comes in
goes out. The aliases below put the axes into a signature, where a reader looks for them.
Leading axes may be absent: queries of shape ``(T, D)`` are one head of one sequence.
"""

from typing import Annotated, Any

Array = Any
"""An array of any Array-API kind."""

Queries = Annotated[Any, "B H T D"]
Keys = Annotated[Any, "B G S D"]
Values = Annotated[Any, "B G S D"]
Scores = Annotated[Any, "B H T S"]
Visible = Annotated[Any, "B H T S, bool, True = may attend"]
LogSumExp = Annotated[Any, "B H T"]
Hidden = Annotated[Any, "B T E"]
TokenIds = Annotated[Any, "B T, integers"]
Logits = Annotated[Any, "B T V"]
