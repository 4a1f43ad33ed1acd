"""The page stands alone, holds the model's own numbers, and computes from them what the model did."""

import json
import re
import shutil
import subprocess
from base64 import b64decode
from html.parser import HTMLParser
from importlib.resources import files

import numpy as np
import pytest

from attention_views import CONTEXT, G, H, L, previous_head, view_of
from qkv.errors import OptionError
from qkv.lab.maps import HeadNumbers, read_maps
from qkv.models import load
from qkv.viz.attention import AttentionView
from qkv.viz.attention_page import attention_html, heads_within, pack, page_data, rules_record
from qkv.viz.head_names import HEAD_NAMES
from tiny_models import write_model

NASTY = "</script><script>alert(1)</script> <b>\"bold\" & 'loud'</b> <!-- {{ x }}"


class Tags(HTMLParser):
    """Collects tags and what a browser would fetch."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.fetched, self.words = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        fetching = {"src", "srcset", "href", "poster", "action", "background"}
        self.fetched += [
            value for name, value in attrs if name in fetching and not (value or "").startswith("data:")
        ]

    def handle_data(self, data):
        self.words.append(data)


def data_of(page):
    return json.loads(page.split('<script type="application/json" id="data">')[1].split("</script>")[0])


def unpacked(packed, length):
    codes = np.frombuffer(b64decode(packed["codes"]), "<i2").reshape(length, -1)
    return codes * packed["step"]


def test_nothing_is_fetched():
    page = attention_html(view_of())
    assert Tags(page).fetched == []
    assert "default-src 'none'" in page
    assert not re.search(r"https?://|@import|url\(", page)


def test_text_and_tokens_are_text_and_no_markup():
    view = view_of()
    view = AttentionView(view.model, NASTY, NASTY, (NASTY, *view.tokens[1:]), view.maps)
    page = attention_html(view)
    assert Tags(page).tags.count("script") == 2 and "b" not in Tags(page).tags
    assert "alert(1)</script>" not in page
    assert data_of(page)["tokens"][0] == NASTY
    assert NASTY in "".join(Tags(page).words)


def test_the_page_reads_on_a_phone_in_light_and_dark():
    page = attention_html(view_of())
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in page
    assert "prefers-color-scheme: dark" in page and "max-width: 44rem" in page


def test_every_place_that_the_script_looks_for_is_there():
    page = attention_html(view_of())
    ids = set(re.findall(r'\bid="([^"]+)"', page))
    script = files("qkv.viz").joinpath("templates/attention.js").read_text(encoding="utf-8")
    asked = set(re.findall(r'\bat\("([^"]+)"\)', script)) | set(
        re.findall(r'querySelector\w*\("#(\w+)', script)
    )
    assert asked and asked <= ids


def test_queries_keys_and_values_are_the_models_rounded_to_16_bits():
    data, view = data_of(attention_html(view_of())), view_of()
    assert len(data["queries"]) == L * H and len(data["keyValues"]) == L * G
    for layer, head in ((0, 0), (1, 4), (2, 5)):
        numbers = view.head(layer, head)
        key, value = data["keyValues"][f"{layer}.{head // 3}"]
        for packed, x in (
            (data["queries"][f"{layer}.{head}"], numbers.q),
            (key, numbers.k),
            (value, numbers.v),
        ):
            np.testing.assert_allclose(unpacked(packed, 23), x, atol=np.abs(x).max() / 65_000)


def test_a_zero_array_is_packed_too():
    assert not unpacked(pack(np.zeros((3, 2))), 3).any()


def test_small_maps_are_the_weights_to_a_byte():
    data, view = data_of(attention_html(view_of())), view_of()
    bytes_of = np.frombuffer(b64decode(data["maps"]), np.uint8).reshape(L, H, -1) / 255
    for layer, head in ((0, 5), (2, 1)):
        expected = view.maps.weights[layer, head][np.tril_indices(23)]
        np.testing.assert_allclose(bytes_of[layer, head], np.sqrt(expected), atol=0.5 / 255 + 1e-6)


def test_the_page_begins_with_the_chosen_head_or_the_most_telling():
    view = previous_head(view_of(), 1, 4)
    assert data_of(attention_html(view))["chosen"] == [1, 4]
    assert data_of(attention_html(view, (2, 0)))["chosen"] == [2, 0]
    with pytest.raises(OptionError, match="layer must be from 0 to 2"):
        attention_html(view, (3, 0))


def test_names_shares_and_their_order_are_those_of_the_terminal():
    data = data_of(attention_html(previous_head(view_of(), 1, 4)))
    assert data["labels"][1][4][:2] == ["previous", 0.75]
    assert list(data["names"]) == list(HEAD_NAMES)
    assert (data["layers"], data["heads"], data["groups"]) == (L, H, G)


def test_beyond_the_budget_heads_are_left_out_and_the_page_says_so():
    view = view_of()
    one = 23 * 6 * 8 // 3  # 23 x 6 numbers: two bytes each, four letters for three bytes
    assert heads_within(view, (2, 3), 1) == [(2, 3)]
    page = attention_html(view, (2, 3), most_bytes=9 * one)
    data = data_of(page)
    kept = len(data["queries"])
    assert 3 <= kept < L * H and "2.3" in data["queries"]
    assert f"it has them for {kept} of {L * H} heads" in page
    packed = [*data["queries"].values(), *(one for pair in data["keyValues"].values() for one in pair)]
    assert sum(len(one["codes"]) for one in packed) <= 9 * one + 4 * len(packed)
    assert "To keep the file small" not in attention_html(view)


def test_keys_and_values_that_heads_share_count_once_in_the_budget():
    one = 23 * 6 * 8 // 3
    everything = (L * H + 2 * L * G) * one
    assert len(heads_within(view_of(), None, everything)) == L * H
    assert len(heads_within(view_of(), None, everything - one)) < L * H


def test_a_long_texts_maps_are_blocks_and_the_page_says_how_large():
    page = attention_html(view_of(CONTEXT))
    data = data_of(page)
    assert data["starts"] == list(range(0, CONTEXT, 4)) and len(data["tokens"]) == CONTEXT
    assert len(b64decode(data["maps"])) == L * H * 53 * 54 // 2
    assert "a cell is 4 × 4 tokens" in page


def test_rules_that_a_layer_has_are_told():
    x = np.ones((2, 4))
    plain = HeadNumbers(x, x, x, {"window": None})
    assert rules_record(plain) == {"scale": 0.5}
    ruled = HeadNumbers(x, x, x, {"window": 3, "scale": 0.25, "softcap": 5.0, "sinks": np.array([0.5])})
    assert rules_record(ruled) == {"scale": 0.25, "window": 3, "softcap": 5.0, "sink": 0.5}


# The script's own arithmetic

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="runs the page's script in node")


def computed(view, at, **switches):
    """What the script's formulas give for a head: weights, output and meters."""
    script = files("qkv.viz").joinpath("templates/attention.js").read_text(encoding="utf-8")
    numbers_part = re.search(r"const bytes = .*?\n}\n", script, re.DOTALL)
    formula = re.search(r"// The formula, .*?(?=// What is shown)", script, re.DOTALL)
    assert numbers_part and formula
    data = page_data(view, [at])
    name, key_name = next(iter(data["queries"])), next(iter(data["keyValues"]))
    program = f"""
      const T = {len(view.tokens)}, data = {json.dumps(data)};
      {numbers_part[0]} {formula[0]}
      const [k, v] = data.keyValues["{key_name}"].map(unpack);
      const numbers = {{ q: unpack(data.queries["{name}"]), k, v, rules: data.rules["{name}"] }};
      const {{ weights, output, meters }} = run(numbers, products(numbers), {json.dumps(switches)});
      console.log(JSON.stringify([[...weights], [...output.values], meters]));
    """
    done = subprocess.run(["node", "-"], input=program, capture_output=True, text=True, check=True)
    weights, output, meters = json.loads(done.stdout)
    T = len(view.tokens)
    return np.reshape(weights, (T, T)), np.reshape(output, (T, -1)), meters


@needs_node
@pytest.mark.parametrize("at", [(0, 0), (2, 5)])
def test_the_script_computes_the_models_own_weights_and_output(at):
    numbers = view_of().head(*at)
    weights, output, meters = computed(view_of(), at, scale=True, mask=True)
    np.testing.assert_allclose(weights, numbers.weights(), atol=2e-4)
    np.testing.assert_allclose(output, numbers.weights() @ numbers.v, atol=2e-3)
    seen = np.tri(23, dtype=bool)
    scores = (numbers.q @ numbers.k.T * numbers.scale)[seen]
    assert meters["variance"] == pytest.approx(scores.var(), rel=1e-3)
    assert meters["future"] == 0


@needs_node
def test_without_scale_and_mask_the_script_computes_what_that_would_give():
    numbers = view_of().head(1, 4)
    scores = (numbers.q @ numbers.k.T).astype(np.float64)
    expected = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected /= expected.sum(axis=1, keepdims=True)
    weights, _, meters = computed(view_of(), (1, 4), scale=False, mask=False)
    np.testing.assert_allclose(weights, expected, atol=1e-3)
    assert meters["variance"] == pytest.approx(scores.var(), rel=1e-3)
    assert meters["future"] == pytest.approx(np.triu(expected, 1).sum(axis=1).mean(), abs=1e-3)
    bits = -(expected * np.log2(expected, where=expected > 0, out=np.zeros_like(expected))).sum(axis=1)
    assert meters["entropy"] == pytest.approx(bits.mean(), abs=1e-2)


@needs_node
def test_the_script_keeps_a_models_window(tmp_path):
    mistral = load(write_model(tmp_path, "mistral"))
    ids = np.arange(11)
    read = read_maps(mistral, ids, delimiters=lambda model: ())
    view = AttentionView(mistral, "window", "text", tuple("abcdefghijk"), read)
    weights, _, _ = computed(view, (1, 2), scale=True, mask=True)
    np.testing.assert_allclose(weights, view.head(1, 2).weights(), atol=2e-4)
    assert weights[10, 5] == 0 and weights[10, 6] > 0


def test_the_templates_are_part_of_the_package():
    folder = files("qkv.viz").joinpath("templates")
    for name in ("attention.html.j2", "attention.css", "attention.js"):
        assert folder.joinpath(name).is_file()
