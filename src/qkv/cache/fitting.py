"""Whether a policy can be had with a model."""

from qkv.cache.contiguous import CacheShape
from qkv.cache.policy import Policy
from qkv.errors import OptionError


def check_fits_model(policy: Policy, shape: CacheShape, knows_rotation: bool) -> None:
    """Refuse what a model cannot have.

    Parameters
    ----------
    policy : Policy
    shape : CacheShape
        Of the model.
    knows_rotation : bool
        Whether the model turns whole keys by their position and says how.

    Raises
    ------
    OptionError
    """
    policy.check_fits(shape.num_layers, shape.num_kv_heads)
    if policy.latent and not shape.shares_values:
        raise OptionError("latent is for models with latent attention; this one has keys and values")
    asks = "rerotate" if policy.rerotate else policy.eviction and policy.eviction.name
    if asks in ("rerotate", "expected") and not knows_rotation:
        raise OptionError(
            f"{asks} must know how the model turns whole keys by their position, and this one does not "
            f"(or not wholly); take another eviction, such as snapkv or streaming"
        )
    if policy.rerotate:
        _check_rerotation(policy)


def _check_rerotation(policy: Policy) -> None:
    if policy.element not in ("float32", "fp16", "bf16"):
        raise OptionError(
            f"rerotate turns stored keys again, which would quantise {policy.element} twice; "
            f"leave one of the two out"
        )
    if policy.eviction and policy.eviction.name == "pyramidkv":
        raise OptionError(
            "rerotate needs as many tokens in each layer, and pyramidkv keeps more in lower ones"
        )
