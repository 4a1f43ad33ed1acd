"""All numbers that training moves: one flat vector, seen through the checkpoint's names and shapes."""

from collections.abc import Iterator, Mapping
from math import prod

import numpy as np
from numpy.typing import NDArray

from qkv.errors import ShapeError


class Parameters(Mapping[str, NDArray[np.floating]]):
    """Named arrays that lie one after the other in one vector.

    An optimiser, a norm or a checkpoint takes ``vector``; a formula takes the arrays, which are views
    of it. Gradients are `Parameters` of the same names and shapes.

    Parameters
    ----------
    shapes : mapping from names to shapes
        In the order in which they lie.
    vector : (size,) float32 or float64, optional
        What they begin as; zeros when left out. It is kept, not copied.

    Raises
    ------
    ShapeError
        If the vector has another length than the shapes together.

    Examples
    --------
    >>> parameters = Parameters({"w": (2, 3), "b": (2,)})
    >>> parameters["w"][:] = 1
    >>> parameters.vector.tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0]
    """

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], vector: NDArray[np.floating] | None = None
    ) -> None:
        self.shapes = dict(shapes)
        sizes = [prod(shape) for shape in self.shapes.values()]
        if vector is None:
            vector = np.zeros(sum(sizes), np.float32)
        if vector.shape != (sum(sizes),):
            raise ShapeError(f"expected a vector of {sum(sizes)} numbers, all parameters, not {vector.shape}")
        self.vector = vector
        pieces = np.split(vector, np.cumsum(sizes)[:-1])
        named = zip(self.shapes.items(), pieces, strict=True)
        self._arrays = {name: piece.reshape(shape) for (name, shape), piece in named}

    def __getitem__(self, name: str) -> NDArray[np.floating]:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def joined(self, *names: str) -> NDArray[np.floating]:
        """Return matrices of one width that lie one after the other as a single one, still a view.

        Examples
        --------
        >>> parameters = Parameters({"w_k": (1, 2), "w_v": (2, 2)})
        >>> parameters["w_v"][:] = 1
        >>> parameters.joined("w_k", "w_v").tolist()
        [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
        """
        listed, width = list(self.shapes), self.shapes[names[0]][1]
        first = listed.index(names[0])
        assert tuple(listed[first : first + len(names)]) == names, "they must lie one after the other"
        start = sum(prod(self.shapes[name]) for name in listed[:first])
        stop = start + sum(prod(self.shapes[name]) for name in names)
        return self.vector[start:stop].reshape(-1, width)

    def zeros(self) -> "Parameters":
        """Return as many zeros under the same names: where gradients go."""
        return Parameters(self.shapes, np.zeros_like(self.vector))
