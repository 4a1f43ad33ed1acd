"""How numbers of the cache are stored: bits each, and the scales that come with them.

"INT8" alone says too little: with a float32 scale per token and head it is 51.6 % of 16 bits at a head
size of 128, not 50. So each form below says what its scales are.
"""

from dataclasses import dataclass

from qkv.errors import PlanError
from qkv.planner.layers import LayerGroup


@dataclass(frozen=True)
class Storage:
    """One way to store the numbers of a key or a value.

    Parameters
    ----------
    name : str
    title : str
        What to call it in a table.
    bits : int
        Of each number.
    scale_bytes : int
        What goes with each group of numbers: scale, zero point.
    group : int, optional
        Numbers per group; all of one key or value when left out.
    plain_tail : int
        Last numbers of a vector that stay in 16 bits: the rotary part of a latent.
    is_lossless : bool
        Whether the numbers stay those of a 16-bit model.

    Examples
    --------
    >>> int8, q4_0 = STORAGES["int8"], STORAGES["q4_0"]
    >>> int8.vector_bytes(128), q4_0.vector_bytes(128)
    (132, 72)
    """

    name: str
    title: str
    bits: int
    scale_bytes: int = 0
    group: int | None = None
    plain_tail: int = 0
    is_lossless: bool = False

    def vector_bytes(self, num_numbers: int) -> int:
        """Return what one vector takes; a group that is not full takes a whole scale."""
        coded = num_numbers - self.plain_tail
        groups = 1 if self.group is None else -(-coded // self.group)
        return -(-coded * self.bits // 8) + groups * self.scale_bytes + 2 * self.plain_tail

    def token_bytes(self, layer: LayerGroup) -> int:
        """Return what one layer keeps of one token.

        Raises
        ------
        PlanError
            If this form is for latents, and the layer has none.
        """
        if self.plain_tail and not layer.is_latent:
            raise PlanError(f"{self.name} is for latent attention; this model has keys and values: try fp8")
        vectors = [layer.key_dim] if layer.is_latent else [layer.key_dim, layer.value_dim]
        per_head = sum(self.vector_bytes(numbers) for numbers in vectors)
        index = self.vector_bytes(layer.index_dim) if layer.index_dim else 0
        return layer.num_kv_heads * per_head + index


STORAGES = {
    storage.name: storage
    for storage in (
        Storage("float32", "float32", 32, is_lossless=True),
        Storage("bf16", "bfloat16", 16, is_lossless=True),
        Storage("fp16", "float16", 16, is_lossless=True),
        Storage("fp8", "FP8, a scale per tensor", 8),
        Storage("int8", "INT8, float32 scale per token, head", 8, 4),
        Storage("int8-fp16", "INT8, float16 scale per token, head", 8, 2),
        Storage("q8_0", "8 bit, float16 scale per 32", 8, 2, 32),
        Storage("q5_1", "5 bit, scale and least per 32", 5, 4, 32),
        Storage("q5_0", "5 bit, float16 scale per 32", 5, 2, 32),
        Storage("q4_1", "4 bit, scale and least per 32", 4, 4, 32),
        Storage("q4_0", "4 bit, float16 scale per 32", 4, 2, 32),
        Storage("iq4_nl", "4 bit from a table, scale per 32", 4, 2, 32),
        Storage("int4", "INT4, float16 scale and zero per 64", 4, 4, 64),
        Storage("int4-g32", "INT4, float16 scale and zero per 32", 4, 4, 32),
        Storage("nvfp4", "FP4, 8-bit scale per 16", 4, 1, 16),
        Storage("fp8_ds_mla", "FP8 latent, scale per 128, rotary part in 16 bits", 8, 4, 128, plain_tail=64),
    )
}
"""Every form by name."""


def storage_named(name: str, known: tuple[str, ...]) -> Storage:
    """Return a form by name.

    Raises
    ------
    PlanError
        If ``name`` is none of ``known``.
    """
    if name not in known:
        raise PlanError(f"the cache stores its numbers as one of {', '.join(known)}, not {name[:40]!r}")
    return STORAGES[name]
