"""GGUF files say the same things under other names."""

import numpy as np
import pytest

from qkv import PlanError, plan
from qkv.planner import find_model
from qkv.planner.gguf_metadata import config_of_metadata

gguf = pytest.importorskip("gguf", reason="needs the extra: pip install 'qkv[gguf]'")


def write(path, architecture, fields, tensors=()):
    writer = gguf.GGUFWriter(str(path), architecture)
    for name, value in fields.items():
        key = f"{architecture}.{name}"
        if isinstance(value, list):
            writer.add_array(key, value)
        else:
            writer.add_uint32(key, value)
    for name, array in tensors:
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


SIZES = {
    **{"block_count": 12, "context_length": 977, "embedding_length": 640, "attention.head_count": 10},
    **{"attention.head_count_kv": 5, "attention.key_length": 96, "attention.value_length": 96},
}


def test_a_files_metadata_give_layers_and_its_tensors_the_weights(tmp_path):
    tensors = [
        ("token_embd.weight", np.zeros((7, 640), np.float16)),
        ("output.weight", np.zeros(11, np.float32)),
    ]
    memory = find_model(write(tmp_path / "small.gguf", "llama", SIZES, tensors))
    assert (memory.name, memory.max_context) == ("small", 977)
    assert memory.numbers(1) == 2 * 12 * 5 * 96
    assert memory.weight_bytes == 7 * 640 * 2 + 11 * 4


def test_keys_may_be_longer_than_values(tmp_path):
    sizes = {**SIZES, "attention.value_length": 64}
    assert find_model(write(tmp_path / "a.gguf", "llama", sizes)).numbers(1) == 12 * 5 * (96 + 64)


def test_gemmas_pattern_and_window(tmp_path):
    sizes = {**SIZES, "attention.sliding_window": 33}
    layers = find_model(write(tmp_path / "a.gguf", "gemma3", sizes)).layers
    assert sorted((group.count, group.window) for group in layers if group.window) == [(10, 33)]


def test_a_pattern_by_layer_goes_before_the_classs():
    metadata: dict[str, object] = {f"gemma3.{name}": value for name, value in SIZES.items()}
    metadata |= {"general.architecture": "gemma3", "gemma3.attention.sliding_window": 33}
    metadata["gemma3.attention.sliding_window_pattern"] = [True] * 3 + [False] * 9
    layers = find_model(config_of_metadata(metadata)).layers
    assert [(group.count, group.window) for group in layers] == [(3, 33), (9, None)]


def test_key_heads_by_layer(tmp_path):
    sizes = {**SIZES, "attention.head_count_kv": [2] * 6 + [0] * 6}
    assert find_model(write(tmp_path / "a.gguf", "llama", sizes)).numbers(1) == 2 * 6 * 2 * 96


def test_latent_attention(tmp_path):
    sizes = {**SIZES, "attention.kv_lora_rank": 512, "rope.dimension_count": 64, "attention.head_count_kv": 1}
    memory = find_model(write(tmp_path / "a.gguf", "deepseek2", sizes))
    assert memory.numbers(1) == 12 * 576


def test_an_architecture_with_a_state_that_is_not_known_is_refused(tmp_path):
    path = write(tmp_path / "a.gguf", "plamo2", {**SIZES, "ssm.conv_kernel": 4})
    with pytest.raises(PlanError, match="ssm_conv_kernel"):
        plan(path)


def test_a_file_that_is_no_gguf_is_refused(tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(b"GGUF and then nothing of the kind")
    with pytest.raises(PlanError, match="cannot be read as GGUF"):
        find_model(path)
