"""Which layer of a model does what: the list a config.json spells out, implies, or leaves to its class."""

from collections.abc import Sequence

from qkv.errors import PlanError
from qkv.planner.reading import Reading

KIND_OF_NAME = {
    "full_attention": "full",
    "attention": "full",
    "global_attention": "full",
    "indexed_attention": "full",
    "deepseek_sparse_attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "state",
    "mamba": "state",
    "mamba2": "state",
    "conv": "state",
    "recurrent": "state",
    "hybrid": "both",
    "mlp": "nothing",
    "moe": "nothing",
    "dense": "nothing",
    "sparse": "nothing",
}
"""Names of layer types in files, and what such a layer keeps: keys and values, a state, both, nothing."""

KIND_OF_LETTER = {"M": "state", "*": "full", "-": "nothing", "E": "nothing"}
"""Nemotron-H writes its layers as one word."""


def layer_kinds(reading: Reading) -> list[str]:
    """Return what each layer keeps, from the first to the last.

    Returns
    -------
    list of str
        ``full``, ``sliding``, ``chunked`` or ``cross``: keys and values of such reach; ``state``: a fixed
        state; ``both``: full keys and values and a state; ``nothing``.

    Raises
    ------
    PlanError
        If the file's own list has another length than the model, or names a kind that is not known.
    """
    kinds = _listed(reading) or _implied(reading)
    if reading.family.attention_everywhere:
        kinds = ["both" if kind == "state" else kind for kind in kinds]
    kinds = _without_shared(reading, _with_last_full(reading, kinds))
    by_layer = reading.kv_heads_by_layer
    if by_layer is None:
        return kinds
    return [kind if by_layer[layer] else "nothing" for layer, kind in enumerate(kinds)]


def _listed(reading: Reading) -> list[str] | None:
    fields = reading.fields
    names = next((n for n in ("layer_types", "layers_block_type") if fields.items(n) is not None), None)
    if names is not None:
        kinds = [_kind_named(name) for name in fields.items(names) or []]
        if reading.family.state == "mamba2" and not fields.holds("num_hidden_layers"):
            return kinds
        return _of_length(reading, names, kinds)
    if fields.holds("hybrid_override_pattern"):
        letters = fields.text("hybrid_override_pattern")
        if set(letters) - set(KIND_OF_LETTER):
            raise PlanError(f"config.json: hybrid_override_pattern takes M, *, - and E, not {letters[:80]!r}")
        return _of_length(reading, "hybrid_override_pattern", [KIND_OF_LETTER[letter] for letter in letters])
    if fields.holds("hybrid_layer_pattern"):
        flags = _flags(fields.items("hybrid_layer_pattern") or [], "hybrid_layer_pattern")
        return _of_length(reading, "hybrid_layer_pattern", ["sliding" if flag else "full" for flag in flags])
    return None


def _implied(reading: Reading) -> list[str]:
    family, num_layers = reading.family, reading.num_layers
    if family.state is not None:
        return _with_states(reading)
    if reading.fields.holds("cross_attention_layers"):
        crossing = _indices(reading, "cross_attention_layers")
        return ["cross" if layer in crossing else "full" for layer in range(num_layers)]
    match family.windows:
        case "all":
            return ["sliding"] * num_layers
        case "upper":
            return _upper_windows(reading)
        case "pattern":
            return _periodic(num_layers, _period(reading), "sliding")
        case "chunks":
            return _chunks(reading)
    return ["full"] * num_layers


def _upper_windows(reading: Reading) -> list[str]:
    """Qwen2's rule: the first ``max_window_layers`` see all tokens, the rest a window, if that is on."""
    fields, num_layers = reading.fields, reading.num_layers
    if not fields.flag("use_sliding_window", False):
        return ["full"] * num_layers
    first = fields.integer("max_window_layers", num_layers, least=0)
    return ["full" if layer < first else "sliding" for layer in range(num_layers)]


def _chunks(reading: Reading) -> list[str]:
    num_layers = reading.num_layers
    listed = reading.fields.items("no_rope_layers")
    if listed:  # 1 where positions are rotated: those layers see their own chunk
        flags = _flags(listed, "no_rope_layers")
        return _of_length(reading, "no_rope_layers", ["chunked" if flag else "full" for flag in flags])
    period = reading.fields.integer("no_rope_layer_interval", reading.family.period)
    return _periodic(num_layers, period, "chunked")


def _with_states(reading: Reading) -> list[str]:
    fields, num_layers = reading.fields, reading.num_layers
    if fields.holds("attn_layer_period"):
        period, offset = fields.integer("attn_layer_period"), fields.integer("attn_layer_offset", least=0)
        return ["full" if layer % period == offset else "state" for layer in range(num_layers)]
    if fields.holds("block_types"):
        cycle = [_kind_named(name) for name in fields.items("block_types") or []] or ["sliding"]
        cycle = ["sliding" if kind == "full" else kind for kind in cycle]
        return [cycle[layer % len(cycle)] for layer in range(num_layers)]
    for name in ("attn_layer_indices", "full_attn_idxs"):
        if fields.holds(name):
            attention = _indices(reading, name)
            return ["full" if layer in attention else "state" for layer in range(num_layers)]
    if reading.family.state == "delta":
        return _periodic(num_layers, fields.integer("full_attention_interval", 4), "state")
    if reading.family.attention_everywhere or not reading.family.has_attention:
        return ["state"] * num_layers
    if reading.family.state == "gated":  # Griffin's class: two recurrent layers, one local one
        return [("state", "state", "sliding")[layer % 3] for layer in range(num_layers)]
    raise PlanError(
        "config.json does not say which layers keep keys and values and which a state; "
        "it needs layer_types or the like"
    )


def _period(reading: Reading) -> int:
    for name in ("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers"):
        value = reading.fields.values.get(name)
        if type(value) is str and value:  # EXAONE writes LLLG
            return len(value)
        if value is not None:
            return reading.fields.integer(name)
    return reading.family.period


def _periodic(num_layers: int, period: int, kind: str) -> list[str]:
    return ["full" if (layer + 1) % period == 0 else kind for layer in range(num_layers)]


def _with_last_full(reading: Reading, kinds: list[str]) -> list[str]:
    """Gemma 4 makes its last layer a full one, MiMo-V2 its first, whatever the pattern says."""
    model_type = reading.fields.text("model_type")
    if model_type == "gemma4_text" and kinds[-1] == "sliding":
        return [*kinds[:-1], "full"]
    if model_type == "mimo_v2_flash" and not reading.fields.holds("layer_types"):
        return ["full", *kinds[1:]]
    return kinds


def _without_shared(reading: Reading, kinds: list[str]) -> list[str]:
    """Layers that reuse an earlier layer's keys and values keep none of their own."""
    fields = reading.fields
    if fields.holds("num_kv_shared_layers"):
        shared = fields.integer("num_kv_shared_layers", least=0)
        if shared >= len(kinds):
            raise PlanError(f"config.json: {shared} of {len(kinds)} layers share the keys of earlier ones")
        return [*kinds[: len(kinds) - shared], *["nothing"] * shared]
    if fields.flag("use_cla", False):
        factor = fields.integer("cla_share_factor")
        return [kind if layer % factor == 0 else "nothing" for layer, kind in enumerate(kinds)]
    return kinds


def _kind_named(name: object) -> str:
    kind = KIND_OF_NAME.get(name) if isinstance(name, str) else None
    if kind is None:
        known = ", ".join(sorted(KIND_OF_NAME))
        raise PlanError(
            f"config.json names a layer type whose memory is not known: {str(name)[:40]!r}; known are {known}"
        )
    return kind


def _of_length(reading: Reading, name: str, kinds: list[str]) -> list[str]:
    if len(kinds) != reading.num_layers:
        raise PlanError(
            f"config.json: {name} lists {len(kinds)} layers, num_hidden_layers says {reading.num_layers}"
        )
    return kinds


def _indices(reading: Reading, name: str) -> set[int]:
    indices = reading.fields.items(name) or []
    if not all(type(index) is int and 0 <= index < reading.num_layers for index in indices):
        raise PlanError(f"config.json: {name} must list layers from 0 to {reading.num_layers - 1}")
    return set(indices)


def _flags(values: Sequence[object], name: str) -> Sequence[object]:
    if not all(value in (0, 1) for value in values):
        raise PlanError(f"config.json: {name} must list 0 and 1")
    return values
