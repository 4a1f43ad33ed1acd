"""One text through each library, token by token: the same three verbs for all of them.

`read` a prompt and get the logits behind it, `follow` it by a number of most likely tokens, and `close`.
All run on as many threads as qkv.
"""

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.engine import Engine
from qkv.kernels.host import num_threads
from qkv.models import load, new_cache


@dataclass
class Qkv:
    """A request of its own in an engine, with all that belongs to it: scheduling, sampling, statistics."""

    folder: Any
    weights: str = "as stored"

    def __post_init__(self):
        self.model = load(self.folder, self.weights)

    def read(self, ids):
        return self.model.next_logits(ids, new_cache(self.model))

    def begin(self, ids, count):
        """Read the prompt, as the others do, before a clock runs."""
        self._engine = Engine(self.model)
        self._stream = self._engine.submit(ids, max_tokens=count + 1, ignore_eos=True)
        self._engine.step()

    def follow(self, count):
        for _ in range(count):
            self._engine.step()
        return list(self._stream.new_ids[1:])


class LlamaCpp:
    """llama.cpp by its own C functions, so that nothing of Python's is timed but the choice of the token."""

    def __init__(self, path, context):
        import llama_cpp

        self._lib = llama_cpp
        llama_cpp.llama_log_set(_SILENT, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = context, 512, 512
        params.n_threads = params.n_threads_batch = num_threads()
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        assert self._model and self._context, f"llama.cpp cannot read {path}"
        self._V = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))

    def _run(self, ids):
        tokens = (self._lib.llama_token * len(ids))(*ids)
        failed = self._lib.llama_decode(self._context, self._lib.llama_batch_get_one(tokens, len(ids)))
        assert not failed, f"llama_decode returned {failed}"
        logits = self._lib.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(logits, shape=(self._V,))

    def read(self, ids):
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)
        return self._run([int(one) for one in ids])

    def begin(self, ids, count):
        self._next = int(self.read(ids).argmax())

    def follow(self, count):
        chosen = []
        for _ in range(count):
            self._next = int(self._run([self._next]).argmax())
            chosen.append(self._next)
        return chosen


class Transformers:
    """transformers' own model and cache in a plain loop, without what `generate` adds to each token."""

    def __init__(self, folder):
        import torch
        from transformers import AutoModelForCausalLM

        self._torch = torch
        torch.set_num_threads(num_threads())
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def _run(self, ids):
        with self._torch.inference_mode():
            made = self._model(self._torch.tensor([ids]), cache=self._cache, use_cache=True, logits_to_keep=1)
        self._cache = made.past_key_values
        return made.logits[0, -1]

    def read(self, ids):
        self._cache = None
        return self._run([int(one) for one in ids]).numpy()

    def begin(self, ids, count):
        self._next = int(self.read(ids).argmax())

    def follow(self, count):
        chosen = []
        for _ in range(count):
            self._next = int(self._run([self._next]).argmax())
            chosen.append(self._next)
        return chosen


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def _SILENT(level, text, data):  # noqa: N802 (a constant to llama.cpp)
    """Say nothing while a model is loaded."""
