"""Layers that keep a state of fixed size instead of keys and values: how many numbers it has.

A recurrent state is counted in float32 and the inputs a short convolution looks back on in 16 bits
(see `qkv.planner.layers`).
"""

from collections.abc import Callable, Mapping

from qkv.models.config import ConfigFields
from qkv.planner.layers import StateGroup


def mamba_state(fields: ConfigFields) -> StateGroup:
    """Return the state of a Mamba layer: N numbers per channel (Gu and Dao 2023)."""
    width = fields.integer("hidden_size") * _expansion(fields)
    width = fields.integer("intermediate_size", width) if fields.holds("state_size") else width
    return StateGroup(1, width * _state_size(fields), width, _kernel(fields))


def mamba2_state(fields: ConfigFields) -> StateGroup:
    """Return the state of a Mamba-2 layer: heads of D x N numbers (Dao and Gu 2024)."""
    num_heads = _first(fields, "mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "num_heads")
    width = fields.integer("mamba_d_ssm", _mamba2_width(fields, num_heads))
    channels = width + 2 * _groups(fields) * _state_size(fields)
    return StateGroup(1, width * _state_size(fields), channels, _kernel(fields))


def delta_state(fields: ConfigFields) -> StateGroup:
    """Return the state of a gated delta rule: value heads of D_k x D_v numbers (Yang et al. 2024).

    Examples
    --------
    Qwen3.5 27B, 48 such layers: 146.8 MiB a sequence, however long it is.

    >>> sizes = {"linear_num_key_heads": 16, "linear_num_value_heads": 48}
    >>> sizes |= {"linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4}
    >>> round(48 * delta_state(ConfigFields(sizes)).bytes_per_layer / 2**20, 1)
    146.8
    """
    key_dim, value_dim = fields.integer("linear_key_head_dim"), fields.integer("linear_value_head_dim")
    key_heads, value_heads = fields.integer("linear_num_key_heads"), fields.integer("linear_num_value_heads")
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    kernel = fields.integer("linear_conv_kernel_dim")
    return StateGroup(1, value_heads * key_dim * value_dim, channels, kernel)


def convolution_state(fields: ConfigFields) -> StateGroup:
    """Return the state of a short convolution alone (LFM2)."""
    return StateGroup(1, 0, fields.integer("hidden_size"), fields.integer("conv_L_cache"))


def gated_state(fields: ConfigFields) -> StateGroup:
    """Return the state of a gated linear recurrence (Griffin, De et al. 2024)."""
    width = fields.integer("lru_width", fields.integer("hidden_size"))
    return StateGroup(1, width, width, fields.integer("conv1d_width"))


STATES: Mapping[str, Callable[[ConfigFields], StateGroup]] = {
    "mamba": mamba_state,
    "mamba2": mamba2_state,
    "delta": delta_state,
    "convolution": convolution_state,
    "gated": gated_state,
}
"""The state of one layer, by kind."""


def _mamba2_width(fields: ConfigFields, num_heads: int) -> int:
    for name in ("mamba_d_head", "mamba_head_dim", "mamba_headdim"):
        if type(fields.values.get(name)) is int:  # "auto" elsewhere: the expanded width is what it adds up to
            return num_heads * fields.integer(name)
    if fields.holds("state_size"):
        return num_heads * fields.integer("head_dim")
    return fields.integer("hidden_size") * _expansion(fields)


def _expansion(fields: ConfigFields) -> int:
    return fields.integer("mamba_expand") if fields.holds("mamba_expand") else fields.integer("expand")


def _state_size(fields: ConfigFields) -> int:
    return _first(fields, "mamba_d_state", "ssm_state_size", "state_size")


def _groups(fields: ConfigFields) -> int:
    return _first(fields, "mamba_n_groups", "mamba_ngroups", "n_groups")


def _kernel(fields: ConfigFields) -> int:
    return _first(fields, "mamba_d_conv", "conv_kernel")


def _first(fields: ConfigFields, *names: str) -> int:
    """Return the first of the fields that is there; the error names the first of them."""
    held = [name for name in names if fields.holds(name)]
    return fields.integer(held[0] if held else names[0])
