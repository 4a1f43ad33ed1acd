"""Decode by latent attention, with W_UK and W_UV absorbed, against keys and values made anew."""

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from qkv.bench.comparison import Instruments, Way, compare
from qkv.bench.measurement import Result, Workload
from qkv.ops import attend
from qkv.ops.latent import AbsorbedWeights, attend_absorbed, attend_up_projected
from qkv.ops.projection import prepare

NAME, UP_PROJECTED = "latent decode", "up-projected"


@dataclass(frozen=True)
class LatentSizes:
    """H heads whose keys are ``nope + rope`` numbers and whose values are ``value``, by way of ``latent``.

    The values are those of DeepSeek-V2-Lite.
    """

    H: int = 16
    nope: int = 128
    rope: int = 64
    value: int = 128
    latent: int = 512


@dataclass(frozen=True)
class LatentDecode:
    """One new token that sees S remembered latents."""

    S: int
    sizes: LatentSizes = LatentSizes()

    @property
    def work(self) -> Workload:
        """The piece of work, in the products of the absorbed form."""
        some = self.sizes
        maps, pairs = some.latent * (some.nope + some.value), self.S * (2 * some.latent + some.rope)
        num_bytes = 4 * (self.S * (some.latent + some.rope) + some.H * maps)
        return Workload(NAME, {"H": some.H, "S": self.S}, 2 * some.H * (maps + pairs), num_bytes)

    def measure(self, instruments: Instruments) -> list[Result]:
        """Compare the two forms on the same latents."""
        some = self.sizes
        draw = np.random.default_rng(0).standard_normal
        heads, width = (1, some.H, 1), some.latent + some.rope
        q_nope, q_rope, keys = (
            draw((*heads, some.nope)),
            draw((*heads, some.rope)),
            draw((1, 1, self.S, width)),
        )
        maps = draw((some.H * (some.nope + some.value), some.latent)) / some.latent**0.5
        operands, w_kv = [_narrow(x) for x in (q_nope, q_rope, keys)], _narrow(maps)
        rules = partial(attend, causal=True, scale=(some.nope + some.rope) ** -0.5)
        absorbed = AbsorbedWeights.of(w_kv, some.H, some.nope).prepared()
        anew = partial(attend_up_projected, *operands, prepare(w_kv), rules)
        run = partial(attend_absorbed, *operands, absorbed, rules)
        return [compare(self.work, run, [Way(UP_PROJECTED, anew)], instruments)]


def _narrow(x: NDArray[np.float64]) -> NDArray[np.float32]:
    return x.astype(np.float32)
