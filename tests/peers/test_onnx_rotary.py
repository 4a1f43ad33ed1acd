"""The ONNX operator RotaryEmbedding: its own node cases, by their expected values and by loops."""

import warnings

import numpy as np
import pytest
from onnx import helper

from qkv.compat import onnx_rotary_embedding

with warnings.catch_warnings():  # making the cases of all operators divides by zero here and there
    warnings.simplefilter("ignore")
    from onnx.backend.test.case.node import collect_testcases

    ALL_CASES = collect_testcases()

CASES = {
    case.name: case
    for case in ALL_CASES
    if len(case.model.graph.node) == 1 and case.model.graph.node[0].op_type == "RotaryEmbedding"
}
INPUTS = ("X", "cos_cache", "sin_cache", "position_ids")


def call_of(case):
    node = case.model.graph.node[0]
    inputs = dict(zip(INPUTS, case.data_sets[0][0], strict=False))
    return inputs, {a.name: helper.get_attribute_value(a) for a in node.attribute}


def test_all_published_cases_are_here():
    assert len(CASES) >= 8


@pytest.mark.parametrize("name", CASES)
def test_published_case(name):
    case = CASES[name]
    inputs, attributes = call_of(case)
    got = onnx_rotary_embedding(**inputs, **attributes)
    (expected,) = case.data_sets[0][1]
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got, expected, rtol=case.rtol, atol=case.atol)


@pytest.mark.parametrize("name", CASES)
def test_published_case_by_loops(name):
    inputs, attributes = call_of(CASES[name])
    X = inputs["X"]
    cosines, sines = inputs["cos_cache"], inputs["sin_cache"]
    if "position_ids" in inputs:
        cosines, sines = cosines[inputs["position_ids"]], sines[inputs["position_ids"]]
    heads = attributes.get("num_heads", 0)
    x = X.reshape(*X.shape[:2], heads, -1).transpose(0, 2, 1, 3) if X.ndim == 3 else X
    expected = np.array(x, dtype=np.float64)
    pairs = cosines.shape[-1]
    for b, h, t, pair in np.ndindex(*x.shape[:3], pairs):
        one, two = (2 * pair, 2 * pair + 1) if attributes.get("interleaved") else (pair, pair + pairs)
        c, s = float(cosines[b, t, pair]), float(sines[b, t, pair])
        expected[b, h, t, one] = c * x[b, h, t, one] - s * x[b, h, t, two]
        expected[b, h, t, two] = s * x[b, h, t, one] + c * x[b, h, t, two]
    if X.ndim == 3:
        expected = expected.transpose(0, 2, 1, 3).reshape(X.shape)
    np.testing.assert_allclose(onnx_rotary_embedding(**inputs, **attributes), expected, rtol=1e-6, atol=1e-7)
