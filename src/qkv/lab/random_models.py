"""Models with random weights: what a model does before it has learned anything."""

import numpy as np

from qkv.lab.own_texts import Ids
from qkv.models import Llama, Model
from qkv.models.llama import LlamaConfig, LlamaLayer
from qkv.models.watching import watch
from qkv.ops.projection import prepare

VOCABULARY = 97


def random_llama(
    random: np.random.Generator, *, E: int, L: int, H: int, G: int, context_length: int, V: int = VOCABULARY
) -> Llama:
    """Return an untrained Llama: every map normal with variance 1 / inputs, every norm 1.

    Parameters
    ----------
    random : numpy.random.Generator
    E, L, H, G, V : int
        Width, layers, query heads, key heads and vocabulary. The MLP is 3 E wide.
    context_length : int

    Returns
    -------
    Llama
        Without a tokenizer.

    Examples
    --------
    >>> model = random_llama(np.random.default_rng(0), E=24, L=2, H=4, G=2, context_length=32)
    >>> model.logits([1, 2, 3]).shape
    (3, 97)
    """
    config = LlamaConfig.from_dict(
        {
            "vocab_size": V,
            "hidden_size": E,
            "intermediate_size": 3 * E,
            "num_hidden_layers": L,
            "num_attention_heads": H,
            "num_key_value_heads": G,
            "max_position_embeddings": context_length,
            "tie_word_embeddings": True,
        }
    )

    def draw(width_out: int, width_in: int) -> np.ndarray:
        scale = np.float32(width_in**-0.5)
        return prepare(random.standard_normal((width_out, width_in), np.float32) * scale)

    ones = np.ones(E, np.float32)
    layers = tuple(
        LlamaLayer(
            attention_norm=ones,
            w_qkv=draw((H + 2 * G) * config.D, E),
            b_qkv=None,
            q_norm=None,
            k_norm=None,
            w_o=draw(E, H * config.D),
            b_o=None,
            mlp_norm=ones,
            w_gate_up=draw(2 * config.F, E),
            b_gate_up=None,
            w_down=draw(E, config.F),
            b_down=None,
        )
        for _ in range(L)
    )
    table = draw(V, E)
    return Llama(config, table, layers, ones, table)


def untrained_like(model: Model, text: Ids, random: np.random.Generator) -> Model:
    """Return a model with random weights, but with another's layers, heads and width."""
    shape = model.cache_shape
    return random_llama(
        random,
        E=model.hidden(text).shape[-1],
        L=shape.num_layers,
        H=watch(model, text).weights.shape[1],
        G=shape.num_kv_heads,
        context_length=model.context_length,
        V=model.vocab_size,
    )
