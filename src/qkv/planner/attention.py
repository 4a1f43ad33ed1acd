"""What a layer of attention keeps: key heads, head sizes, window, in the spellings of all families."""

from typing import Any

from qkv.errors import PlanError
from qkv.models.config import ConfigFields
from qkv.planner.layers import LayerGroup
from qkv.planner.reading import Reading

WIDEST_HEAD = 256
"""The largest head size that models of several families have; assumed where an unknown one says nothing."""

IMAGE_TILES = 4
"""Pictures a Llama 3.2 Vision prompt is cut into, at most."""


def attention_layer(reading: Reading, layer: int, kind: str) -> LayerGroup:
    """Return what one layer of a decoder keeps.

    Parameters
    ----------
    reading : Reading
    layer : int
        Its index.
    kind : str
        As in `qkv.planner.kinds.layer_kinds`.
    """
    reading = reading.of_layer(layer)
    fields = reading.fields
    if reading.family.structure == "latent":
        return _latent(reading)
    if reading.family.structure == "unknown":
        return _largest(reading)
    num_kv_heads, key_dim, value_dim = _sizes(reading, layer, kind)
    if kind == "cross":
        tokens = _image_tokens(reading)
        return LayerGroup(1, num_kv_heads, key_dim, value_dim, "cross", source_tokens=tokens)
    if kind == "sliding":
        window = _window(reading)
        return LayerGroup(1, num_kv_heads, key_dim, value_dim, "sliding" if window else "full", window)
    if kind == "chunked":
        chunk = _stated(reading, "attention_chunk_size")
        return LayerGroup(1, num_kv_heads, key_dim, value_dim, "chunked" if chunk else "full", chunk)
    index_dim = fields.integer("index_head_dim") if fields.holds("index_head_dim") else 0
    return LayerGroup(1, num_kv_heads, key_dim, value_dim, index_dim=index_dim)


def encoder_decoder_layers(reading: Reading) -> list[LayerGroup]:
    """Return a decoder's own keys and values, and those it keeps of the encoder's output."""
    fields = reading.fields
    num_layers = _first(fields, "num_decoder_layers", "decoder_layers", "num_hidden_layers")
    num_heads = _first(fields, "decoder_attention_heads", "num_attention_heads")
    width = fields.integer("hidden_size")
    if not fields.holds("head_dim") and width % num_heads:
        raise PlanError(f"config.json: d_model {width} is no multiple of {num_heads} heads")
    D = fields.integer("head_dim", width // num_heads)
    source = fields.integer("max_source_positions") if reading.family.structure == "speech" else None
    if source is None:
        reading.note("the encoder's input is taken to be as long as the context")
    own = LayerGroup(num_layers, num_heads, D, D)
    return [own, LayerGroup(num_layers, num_heads, D, D, "cross", source_tokens=source)]


def _latent(reading: Reading) -> LayerGroup:
    """MLA: one compressed vector and one rotary key for all heads (DeepSeek-V2, 2024)."""
    fields = reading.fields
    rank, rotary = fields.integer("kv_lora_rank"), fields.integer("qk_rope_head_dim")
    index_dim = 0
    if reading.fields.text("model_type") in ("deepseek_v32", "glm_moe_dsa"):
        index_dim = fields.integer("index_head_dim")
    if fields.holds("num_nextn_predict_layers"):
        reading.note("layers that predict further tokens are not counted; each adds one layer where used")
    # LongCat's layers hold two attentions each, and count as one in its file.
    count = 2 if reading.fields.text("model_type") == "longcat_flash" else 1
    return LayerGroup(count, 1, rank + rotary, 0, index_dim=index_dim)


def _sizes(reading: Reading, layer: int, kind: str) -> tuple[int, int, int]:
    """Return G and the numbers of a key and of a value."""
    fields, G = reading.fields, reading.num_kv_heads
    match fields.text("model_type"):
        case "falcon":
            return _falcon_kv_heads(reading, layer), reading.head_dim, reading.head_dim
        case "gpt_bigcode":
            shared = fields.holds("multi_query") and fields.flag("multi_query")
            return 1 if shared else reading.num_heads, reading.head_dim, reading.head_dim
        case "chatglm":
            grouped = fields.holds("multi_query_attention") and fields.flag("multi_query_attention")
            stated = fields.integer("multi_query_group_num") if grouped else reading.num_heads
            return stated, reading.head_dim, reading.head_dim
        case "mpt" | "dbrx":
            nested = ConfigFields(fields.section("attn_config"))
            return nested.integer("kv_n_heads", reading.num_heads), reading.head_dim, reading.head_dim
        case "gemma4_text" if kind == "full" and not fields.holds("per_layer_config"):
            return _gemma4_full(reading, layer)
        case "mimo_v2_flash" | "mimo_v2":
            return _mimo(reading, layer, kind)
        case "zamba2":
            D = fields.integer("head_dim", 2 * fields.integer("hidden_size") // reading.num_heads)
            return G(layer), D, D
    D = reading.head_dim
    return G(layer), D, fields.integer("value_length", D)


def _falcon_kv_heads(reading: Reading, layer: int) -> int:
    """Falcon 7B has one key head, whatever ``num_kv_heads`` says; Falcon 40B those it says."""
    fields = reading.fields
    both_stated = fields.holds("multi_query") and fields.holds("new_decoder_architecture")
    if not both_stated:
        reading.bound("the file does not say how its heads are grouped: counted as one key head per head")
        return reading.num_heads
    if fields.flag("new_decoder_architecture"):
        return reading.num_kv_heads(layer)
    return 1 if fields.flag("multi_query") else reading.num_heads


def _gemma4_full(reading: Reading, layer: int) -> tuple[int, int, int]:
    fields = reading.fields
    D = fields.integer("global_head_dim", 512)
    equal = fields.flag("attention_k_eq_v", False)
    if equal:
        reading.note("keys and values of full layers are equal, and engines store both")
    G = reading.num_kv_heads(layer)
    return fields.integer("num_global_key_value_heads", G) if equal else G, D, D


def _mimo(reading: Reading, layer: int, kind: str) -> tuple[int, int, int]:
    fields = reading.fields
    G, key_dim, value_dim = reading.num_kv_heads(layer), reading.head_dim, fields.integer("v_head_dim")
    if kind != "sliding":
        return G, key_dim, value_dim
    return (
        fields.integer("swa_num_key_value_heads", 2 * G),
        fields.integer("swa_head_dim", key_dim),
        fields.integer("swa_v_head_dim", value_dim),
    )


def _window(reading: Reading) -> int | None:
    """Return W. MiMo counts the tokens before the query's own, others count that one too."""
    if reading.fields.holds("sliding_window_size"):
        return reading.fields.integer("sliding_window_size") + 1
    if reading.fields.holds("attention_window_size"):
        return reading.fields.integer("attention_window_size")
    return _stated(reading, "sliding_window")


def _stated(reading: Reading, name: str) -> int | None:
    """Return a window the file states; ``None`` where it says there is none, or says nothing."""
    fields = reading.fields
    if name not in fields.values and reading.family.windows != "none":
        reading.bound(f"{name} is not in the file: every layer is counted in full")
    return fields.integer(name) if fields.holds(name) else None


def _image_tokens(reading: Reading) -> int:
    """Return how many tokens of a picture a cross-attention layer keeps, at most."""
    reading.note("one picture of four tiles of 1,601 patches is counted, the most a prompt's image takes")
    return IMAGE_TILES * 1601


def _largest(reading: Reading) -> LayerGroup:
    """Return what a layer of an unknown model keeps at most: the largest of everything that is named."""
    values = reading.fields.values
    heads = [value for name, value in values.items() if "key_value_heads" in name]
    G = max(_positive(heads) or [reading.num_heads])
    dims = _positive([value for name, value in values.items() if name.endswith(("head_dim", "value_length"))])
    D = max([*dims, -(-reading.fields.integer("hidden_size") // reading.num_heads)])
    if not reading.fields.holds("head_dim"):
        D = max(D, WIDEST_HEAD)
    latent = _positive([values.get("kv_lora_rank"), values.get("qk_rope_head_dim")])
    joined = sum(_positive([values.get("qk_nope_head_dim"), values.get("qk_rope_head_dim")]))
    return LayerGroup(1, G, max(D, joined, sum(latent)), max(D, sum(latent)))


def _positive(values: list[Any]) -> list[int]:
    return [value for value in values if type(value) is int and value > 0]


def _first(fields: ConfigFields, *names: str) -> int:
    held = [name for name in names if fields.holds(name)]
    return fields.integer(held[0] if held else names[-1])
