"""What two caches must have in common for the pages of one to be pages of the other."""

from dataclasses import dataclass, fields

from qkv.cache.contiguous import CacheShape
from qkv.cache.policy import Policy


@dataclass(frozen=True)
class Identity:
    """Whose keys and values pages hold, and in what form.

    Attributes
    ----------
    model : str
        Its fingerprint.
    policy : str
    shape : str
        In words.

    Examples
    --------
    >>> Identity.of("4f1a", Policy.parse("int8"), CacheShape(32, 8, 128)).shape
    '32 layers, 8 key heads, keys of 128 numbers, values of 128 numbers'
    """

    model: str
    policy: str
    shape: str

    @classmethod
    def of(cls, model: str, policy: Policy, shape: CacheShape) -> "Identity":
        """Return the identity of a cache's pages."""
        values = f"values of {shape.value_size} numbers{' in them' if shape.shares_values else ''}"
        sizes = f"{shape.num_layers} layers, {shape.num_kv_heads} key heads, keys of {shape.head_dim} numbers"
        return cls(model, str(policy), f"{sizes}, {values}")

    def difference(self, other: "Identity") -> tuple[str, str, str] | None:
        """Return what differs first, and what it is here and there; ``None`` if nothing does."""
        for field in fields(self):
            own, others = getattr(self, field.name), getattr(other, field.name)
            if own != others:
                return field.name, own, others
        return None
