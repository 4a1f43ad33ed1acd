"""How a config.json says rotary positions, in its old and new spellings."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from qkv.errors import CheckpointError
from qkv.models.config import ConfigFields
from qkv.ops.rotary import (
    Rotary,
    rotary_frequencies,
    scale_dynamically,
    scale_linearly,
    scale_llama3,
    scale_yarn,
)

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")


@dataclass(frozen=True)
class RotaryScheme:
    """A model's rotary positions as its config describes them.

    Attributes
    ----------
    size : int
        How many numbers of each head are turned.
    theta : float
        The base.
    rope_type : str
        One of `ROPE_TYPES`.
    scaling : ConfigFields
        The parameters of that type.
    context_length : int
        ``max_position_embeddings``, the length trained on where ``scaling`` names no other.
    """

    size: int
    theta: float
    rope_type: str
    scaling: ConfigFields
    context_length: int

    def at(self, length: int) -> Rotary:
        """Return the frequencies for a text of ``length`` tokens; only "dynamic" depends on it.

        Beyond the length trained on, "dynamic" therefore turns keys by how long the text was when
        they were computed: a cached text then differs from one computed anew, and a row of a batch
        follows the longest row, as in transformers.

        Examples
        --------
        >>> scheme = rotary_scheme({"rope_theta": 10000.0}, size=4, context_length=512)
        >>> scheme.at(1).frequencies
        (1.0, 0.01)
        """
        if self.rope_type == "dynamic":
            return scale_dynamically(self.size, self.theta, self._factor(), self.context_length, length)
        return self._unchanging

    @cached_property
    def _unchanging(self) -> Rotary:
        """The frequencies of every other type, worked out once and not at each token."""
        plain, factor = rotary_frequencies(self.size, self.theta), self._factor()
        match self.rope_type:
            case "linear":
                return scale_linearly(plain, factor)
            case "llama3":
                low = self.scaling.number("low_freq_factor")
                high = self.scaling.number("high_freq_factor")
                return scale_llama3(plain, factor, low, high, self._trained_length())
            case "yarn":
                return self._yarn(factor)
            case _:
                return plain

    def _yarn(self, factor: float) -> Rotary:
        return scale_yarn(
            self.size,
            self.theta,
            factor,
            self._trained_length(),
            fast_turns=self.scaling.number("beta_fast", 32.0),
            slow_turns=self.scaling.number("beta_slow", 1.0),
            magnitude=_yarn_magnitude(self.scaling, factor),
            whole_pairs=self.scaling.flag("truncate", True),
        )

    def _factor(self) -> float:
        if self.rope_type == "default":
            return 1.0
        if self.rope_type == "yarn" and not self.scaling.holds("factor"):
            return self.context_length / self._trained_length()
        return self.scaling.number("factor")

    def _trained_length(self) -> int:
        return self.scaling.integer("original_max_position_embeddings", self.context_length)


def rotary_scheme(
    config: Mapping[str, Any], size: int, context_length: int, *, layer_kind: str | None = None
) -> RotaryScheme:
    """Read ``rope_parameters`` (new spelling) or ``rope_theta`` and ``rope_scaling`` (old).

    Parameters
    ----------
    config : mapping
        The model's config.json.
    size : int
        Head size D, of which ``partial_rotary_factor`` is turned.
    context_length : int
        ``max_position_embeddings``.
    layer_kind : str, optional
        Which entry to take where parameters differ by kind of layer, such as "sliding_attention".

    Returns
    -------
    RotaryScheme
        Already tried once: a field it needs and lacks is an error now.

    Raises
    ------
    CheckpointError
        If the kind of scaling is unknown, or a field is missing, mistyped or useless. Never ignored:
        a model run with wrong positions writes fluent nonsense, and only on long texts.
    """
    fields = ConfigFields(config)
    parameters = fields.section("rope_parameters") or fields.section("rope_scaling")
    if layer_kind is not None and layer_kind in parameters:
        parameters = ConfigFields(parameters).section(layer_kind)
    unread = [kind for kind, nested in parameters.items() if isinstance(nested, Mapping)]
    if unread:
        raise CheckpointError(
            f"config.json: rope_parameters differ by kind of layer, {unread}, "
            f"but one set for {layer_kind or 'all layers'} was expected"
        )
    scaling = ConfigFields(parameters)
    rope_type = scaling.text("rope_type", scaling.text("type", "default"))
    if rope_type not in ROPE_TYPES:
        raise CheckpointError(
            f"config.json: rotary scaling must be one of {', '.join(ROPE_TYPES)}, not {rope_type!r}"
        )
    turned = scaling.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    if turned > 1:
        raise CheckpointError(f"config.json: partial_rotary_factor must be at most 1, not {turned}")
    theta = scaling.number("rope_theta", fields.number("rope_theta", 10000.0))
    scheme = RotaryScheme(int(size * turned), theta, rope_type, scaling, context_length)
    try:
        scheme.at(context_length)
    except (ArithmeticError, ValueError) as error:  # an odd size, a logarithm of 0, two equal borders
        raise CheckpointError(
            f"config.json: no rotary positions of type {rope_type!r} come from its fields: {error}"
        ) from error
    return scheme


def _yarn_magnitude(scaling: ConfigFields, factor: float) -> float | None:
    """Return the explicit attention factor, or the ratio that two ``mscale`` fields describe."""
    if scaling.holds("attention_factor"):
        return scaling.number("attention_factor")
    if scaling.values.get("mscale") and scaling.values.get("mscale_all_dim"):
        plain = scale_yarn(4, 10000.0, factor, 1).magnitude - 1.0
        return (scaling.number("mscale") * plain + 1.0) / (scaling.number("mscale_all_dim") * plain + 1.0)
    return None
