"""A request beside others gets, bit for bit, what it gets alone: under any schedule, on real wiring."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qkv.engine import Engine, Generation, Stream
from qkv.kernels.host import set_num_threads
from qkv.models import Model, load, new_cache
from qkv.ops.backend import is_compiled
from qkv.ops.sampling import Sampling
from tiny_deepseek import write_model as write_deepseek
from tiny_models import VOCAB_SIZE_WITH_TOKENIZER, write_model, write_tokenizer

pytestmark = pytest.mark.skipif(not is_compiled(), reason="NumPy alone promises no equal bits")

MODELS = ("llama", "mistral", "gpt2", "deepseek_v2")
PLAIN = ("page=4", "int8,page=4", "window=9,sinks=2,page=4")
POLICIES = {
    "llama": (
        *PLAIN,
        *("int8-kivi,page=4", "int4,page=4", "streaming=12,page=4", "tova=12,page=4", "knorm=12,page=4"),
        *("h2o=12,page=4", "snapkv=9,page=4", "pyramidkv=9,page=4", "expected=9,page=4"),
        *("streaming=12,rerotate,page=4", "heads=10,window=7,page=4", "int8,h2o=12,page=4"),
    ),
    "mistral": (*PLAIN, "streaming=12,page=4", "int8-kivi,page=4"),
    "gpt2": (*PLAIN, "tova=12,page=4"),
    "deepseek_v2": ("page=4", "latent,page=4"),
}
BEGINNING = tuple(np.random.default_rng(1).integers(2, 255, 30).tolist())


class Asked(NamedTuple):
    """A request; equal ones have equal answers."""

    prompt: tuple[int, ...]
    sampling: Sampling
    policy: str
    max_tokens: int
    n: int
    prompt_logprobs: int | None

    def submit(self, engine: Engine) -> Stream:
        return engine.submit(**{"ignore_eos": False, **self._asdict()})


def answer(stream: Stream) -> list[tuple]:
    return [(one.new_ids, one.logprobs, one.prompt_logprobs, one.finish_reason) for one in stream.choices]


def requests(policies: tuple[str, ...]) -> st.SearchStrategy[Asked]:
    new = st.lists(st.integers(2, 255), min_size=1, max_size=6)
    prompts = st.builds(lambda known, new: BEGINNING[:known] + tuple(new), st.integers(0, 30), new)
    hot = st.builds(
        lambda seed, penalty: Sampling(0.9, top_p=0.95, seed=seed, presence_penalty=penalty, logprobs=2),
        st.integers(0, 3),
        st.sampled_from([0.0, 0.5]),
    )
    return st.builds(
        Asked,
        prompts,
        st.just(Sampling(logprobs=0)) | hot,
        st.sampled_from(policies),
        st.integers(1, 12),
        st.sampled_from([1, 1, 1, 2]),
        st.sampled_from([None, None, 1]),
    )


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder, kind = tmp_path_factory.mktemp(request.param), request.param
    write = write_deepseek if kind.startswith("deepseek") else write_model
    write(folder, kind, vocab_size=VOCAB_SIZE_WITH_TOKENIZER)
    return load(write_tokenizer(folder))


@pytest.fixture(scope="module")
def alone(model: Model) -> Any:
    """The answers of requests that run alone, one thread, each with a pool of its own."""
    known: dict[str, list[tuple]] = {}

    def run(asked: Asked) -> list[tuple]:
        key = repr(asked)
        if key not in known:
            set_num_threads(1)
            stream = asked.submit(Engine(model))
            for one in stream.choices:
                "".join(one)
            known[key] = answer(stream)
        return known[key]

    yield run
    set_num_threads(None)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.parametrize("num_threads", [1, 2])
def test_any_schedule_gives_each_request_its_own_bits(
    model: Model, alone: Any, num_threads: int, request: pytest.FixtureRequest, data: st.DataObject
):
    policies = POLICIES[request.node.callspec.params["model"]]
    asked = data.draw(st.lists(requests(policies), min_size=2, max_size=6))
    expected = [alone(one) for one in asked]
    most = max(_most_bytes(model, one) for one in asked)
    tightness = data.draw(st.sampled_from([None, 1.0, 1.5]))
    set_num_threads(num_threads)
    engine = Engine(
        model,
        pool_bytes=None if tightness is None else int(most * tightness),
        max_batch=data.draw(st.integers(2, 6)),
        chunk_tokens=data.draw(st.sampled_from([1, 3, 7, 16, 64])),
        prefix_sharing=data.draw(st.booleans()),
    )
    streams = []
    for one in asked:
        streams.append(one.submit(engine))
        for _ in range(data.draw(st.integers(0, 4))):
            engine.step()
            engine.check_integrity()
    engine.run()
    for stream, wanted in zip(streams, expected, strict=True):
        assert answer(stream) == wanted
    engine.check_integrity()
    engine.forget_prefixes()
    assert engine.pool.num_pages == 0


def _most_bytes(model: Model, asked: Asked) -> int:
    """More than a request takes alone in any step."""
    return 2 * new_cache(model, asked.policy).step_nbytes(len(asked.prompt) + asked.max_tokens)


def test_the_engine_says_what_generate_says(model: Model, request: pytest.FixtureRequest):
    policies = POLICIES[request.node.callspec.params["model"]]
    engine = Engine(model, chunk_tokens=7, max_batch=5)
    texts = [BEGINNING[: 3 + number] for number in range(len(policies))]
    samplings = [Sampling(0.8, seed=number) if number % 2 else Sampling() for number in range(len(policies))]
    streams = [
        engine.submit(text, sampling=sampling, policy=policy, max_tokens=19)
        for text, sampling, policy in zip(texts, samplings, policies, strict=True)
    ]
    engine.run()
    for stream, text, sampling, policy in zip(streams, texts, samplings, policies, strict=True):
        cache = new_cache(model, policy)
        generation = Generation(model, list(text), sampling, max_tokens=19, cache=cache)
        assert ("".join(stream), stream.finish_reason) == ("".join(generation), generation.finish_reason)
        assert list(stream.new_ids) == generation.new_ids
