"""How large a model's weights are, from its config.json.

Counted are embeddings, attention and feed-forward matrices, experts and routers. Biases and norms are
allowed for with a thousandth on top, which is more than they take in any known model; the picture or
sound parts of a model are not counted.
"""

from dataclasses import dataclass
from math import ceil

from qkv.models.config import ConfigFields
from qkv.planner.layers import ModelMemory
from qkv.planner.reading import Reading

PLAIN_FEED_FORWARD = (
    *("gpt2", "gptj", "gpt_neox", "codegen", "opt", "bloom", "mpt", "phi", "falcon", "starcoder2"),
    *("gpt_bigcode", "nemotron", "persimmon", "arcee", "apertus", "nanochat"),
)
"""Model types whose feed-forward part has two matrices; the others have a gate, and so three."""

TIED_BY_CLASS = (
    "gpt2",
    "opt",
    "bloom",
    "falcon",
    "gemma",
    "gemma2",
    "gemma3_text",
    "cohere",
    "cohere2",
    "mpt",
)
"""Model types that use their embeddings for the output too where the file does not say."""

UNCOUNTED = (
    *("biogpt", "xglm", "ernie4_5_moe", "gemma4_text", "longcat_flash", "lfm2", "lfm2_moe", "mimo_v2_flash"),
    *(
        "mimo_v2",
        "glm4_moe_lite",
        "afmoe",
        "mllama_text_model",
        "openelm",
        "hunyuan",
        "hunyuan_v1_moe",
        "qwen",
    ),
)
"""Model types with other matrices than these, whose weights are not estimated."""

LATENT_SIZES = ("qk_nope_head_dim", "v_head_dim")
"""What a latent's matrices depend on beside what is kept; GGUF files leave it out."""

BIASES_AND_NORMS = 1.001
"""What is not counted one by one."""

BITS_OF_METHOD = {"fp8": 8, "mxfp4": 4.25, "fbgemm_fp8": 8, "compressed-tensors": 8}
"""Bits per quantised weight, scales included, of methods that state none."""


@dataclass(frozen=True)
class Parameters:
    """A model's weights by part; ``active_experts`` of the ``experts`` work on each token.

    Examples
    --------
    >>> small = Parameters(embeddings=100, dense=700, experts=1600, active_experts=200)
    >>> small.total, small.active
    (2400, 1000)
    """

    embeddings: int
    dense: int
    experts: int = 0
    active_experts: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.embeddings + self.dense + self.experts

    @property
    def active(self) -> int:
        """Those that take part in one token."""
        return self.embeddings + self.dense + self.active_experts


def count_parameters(reading: Reading, memory: ModelMemory) -> Parameters | None:
    """Return a decoder's weights by part; ``None`` where the config has too few sizes for it.

    Parameters
    ----------
    reading : Reading
    memory : ModelMemory
        What its layers keep, from which the key and value matrices follow.
    """
    fields, family = reading.fields, reading.family
    sized = all(fields.holds(name) for name in ("vocab_size", "hidden_size", "num_hidden_layers"))
    varies = any(
        isinstance(fields.values.get(name), list) for name in ("num_attention_heads", "intermediate_size")
    )
    if not sized or varies or memory.states or fields.text("model_type") in UNCOUNTED:
        return None
    if family.structure not in ("decoder", "latent"):
        return None
    if family.structure == "latent" and not all(fields.holds(name) for name in LATENT_SIZES):
        return None
    feed_forward = _feed_forward(reading)
    if feed_forward is None:
        return None
    dense, experts, active_experts = feed_forward
    attention = _latent_attention(reading) if family.structure == "latent" else _attention(reading, memory)
    return Parameters(_embeddings(fields), attention + dense, experts, active_experts)


def weight_bytes(parameters: Parameters, fields: ConfigFields) -> int:
    """Return what the weights take as the file stores them; 16 bits a number where it does not say.

    Examples
    --------
    >>> weight_bytes(Parameters(0, 1000), ConfigFields({"torch_dtype": "float32"}))
    4004
    >>> weight_bytes(Parameters(0, 1000, 3200, 400), ConfigFields({"quantization_config": {"bits": 4}}))
    2103
    """
    return ceil(_stored_bits(parameters, fields) / 8 * BIASES_AND_NORMS)


def _stored_bits(parameters: Parameters, fields: ConfigFields) -> float:
    full = 32 if "float32" in (fields.values.get("torch_dtype"), fields.values.get("dtype")) else 16
    method = fields.values.get("quantization_config")
    if not isinstance(method, dict):
        return parameters.total * full
    name = str(method.get("quant_method"))
    stated = method.get("bits")
    bits = stated if type(stated) is int and 1 < stated <= 16 else BITS_OF_METHOD.get(name, full)
    if name == "mxfp4":  # experts alone
        return (parameters.embeddings + parameters.dense) * full + parameters.experts * bits
    return parameters.embeddings * full + (parameters.dense + parameters.experts) * bits


def _embeddings(fields: ConfigFields) -> int:
    model_type = fields.text("model_type")
    tied = fields.flag("tie_word_embeddings", model_type in TIED_BY_CLASS)
    positions = (
        fields.integer("max_position_embeddings") if model_type in ("gpt2", "opt", "gpt_bigcode") else 0
    )
    return ((1 if tied else 2) * fields.integer("vocab_size") + positions) * fields.integer("hidden_size")


def _attention(reading: Reading, memory: ModelMemory) -> int:
    """Count queries, keys, values and output: E x (H + G) (D_k + D_v) per layer."""
    width, num_heads = reading.fields.integer("hidden_size"), reading.num_heads
    kept = sum(
        group.count * group.num_kv_heads * (group.key_dim + group.value_dim) for group in memory.layers
    )
    asked = sum(group.count * num_heads * (group.key_dim + group.value_dim) for group in memory.layers)
    return width * (kept + asked)


def _latent_attention(reading: Reading) -> int:
    fields = reading.fields
    width, num_heads = fields.integer("hidden_size"), reading.num_heads
    plain, rotary = fields.integer("qk_nope_head_dim"), fields.integer("qk_rope_head_dim")
    rank, value_dim = fields.integer("kv_lora_rank"), fields.integer("v_head_dim")
    queries = num_heads * (plain + rotary)
    asking = width * queries
    if fields.holds("q_lora_rank"):
        asking = fields.integer("q_lora_rank") * (width + queries)
    keeping = width * (rank + rotary) + rank * num_heads * (plain + value_dim)
    return reading.num_layers * (asking + keeping + num_heads * value_dim * width)


def _feed_forward(reading: Reading) -> tuple[int, int, int] | None:
    """Return the dense weights, those of all experts, and those of the experts that one token sees."""
    fields = reading.fields
    width = fields.integer("hidden_size")
    plain = fields.text("model_type") in PLAIN_FEED_FORWARD
    if not fields.holds("intermediate_size") and not plain:
        return None
    inner = fields.integer("intermediate_size", 4 * width)
    matrices = (2 if plain else 3) * width
    num_experts = _stated(fields, "num_local_experts", "num_experts", "n_routed_experts")
    if num_experts < 2:
        return matrices * inner * reading.num_layers, 0, 0
    return _with_experts(reading, matrices, inner, num_experts)


def _with_experts(reading: Reading, matrices: int, inner: int, num_experts: int) -> tuple[int, int, int]:
    fields, num_layers = reading.fields, reading.num_layers
    step = _stated(fields, "interleave_moe_layer_step", "decoder_sparse_step") or 1
    sparse = (num_layers - _stated(fields, "first_k_dense_replace")) // step
    expert = matrices * fields.integer("moe_intermediate_size", inner)
    shared = _stated(fields, "n_shared_experts") * expert
    shared += matrices * _stated(fields, "shared_expert_intermediate_size")
    if fields.holds("intermediate_size_mlp"):  # Llama 4: one shared expert, wider dense layers
        shared, inner = matrices * inner, fields.integer("intermediate_size_mlp")
    router = fields.integer("hidden_size") * num_experts
    dense = (num_layers - sparse) * matrices * inner + sparse * (shared + router)
    per_token = _stated(fields, "num_experts_per_tok", "moe_topk") or num_experts
    return dense, sparse * num_experts * expert, sparse * min(per_token, num_experts) * expert


def _stated(fields: ConfigFields, *names: str) -> int:
    """Return the first of the fields that is there, else 0."""
    return next((fields.integer(name, least=0) for name in names if fields.holds(name)), 0)
