"""Where readers of config.json go wrong: each trap as a small file with the right answer."""

import json
import sys
from types import SimpleNamespace

import pytest

from qkv import PlanError, plan
from qkv.planner import find_model

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}


def bytes_per_token(config):
    """All layers' numbers of one token, in 16 bits."""
    return 2 * find_model(config).numbers(1)


def changed(**fields):
    return {**LLAMA, **fields}


def windows(config):
    return [(group.count, group.reach, group.window) for group in find_model(config).layers]


@pytest.mark.parametrize(
    ("name", "expected"),
    {
        "mistral-nemo": 2 * 40 * 8 * 128 * 2,  # 5120 / 32 would be 160
        "qwen3-0.6b": 2 * 28 * 8 * 128 * 2,  # 1024 / 16 would be 64
        "qwen3-30b-a3b": 2 * 48 * 4 * 128 * 2,
        "gemma-2-9b": 2 * 42 * 8 * 256 * 2,  # 3584 / 16 would be 224
        "gemma-3-27b": 2 * 62 * 16 * 128 * 2,  # 5376 / 32 would be 168
        "gpt-oss-20b": 2 * 24 * 8 * 64 * 2,  # 2880 / 64 would be 45
        "qwen3-4b": 147456,  # 2560 / 32 would give 92160
    }.items(),
)
def test_head_dim_is_the_files_and_not_width_by_heads(name, expected):
    assert bytes_per_token(name) == expected


def test_a_sparse_file_takes_heads_and_sizes_from_its_class_and_says_so():
    memory = find_model("gemma-3-4b")
    assert 2 * memory.numbers(1) == 2 * 34 * 4 * 256 * 2
    assert memory.max_context == 131_072
    assert any("4 key heads" in note for note in memory.notes)
    assert not memory.bounds


def test_gemma_3_12b_leaves_out_a_head_size_that_is_not_width_by_heads():
    assert bytes_per_token("gemma-3-12b") == 2 * 48 * 8 * 256 * 2  # 3840 / 16 would be 240


def test_the_language_model_is_found_inside_a_model_of_several_parts():
    nested = {"model_type": "mistral3", "vision_config": {"hidden_size": 7}, "text_config": LLAMA}
    assert bytes_per_token(nested) == 131_072
    assert any("pictures" in note for note in find_model(nested).notes)


def test_a_nested_model_without_any_size_is_its_classs_default():
    llava = {"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32_064}}
    assert bytes_per_token(llava) == 2 * 32 * 32 * 128 * 2


def test_a_head_size_that_is_often_wider_is_bounded_where_the_file_leaves_it_out():
    memory = find_model(changed(model_type="qwen3_moe", hidden_size=2048))
    assert memory.layers[0].key_dim == 128 and memory.bounds  # 2048 / 32 would be 64


@pytest.mark.parametrize("spelling", ["n_layer", "n_layers", "num_layers"])
def test_older_spellings_mean_the_same(spelling):
    older = {"model_type": "bloom", spelling: 24, "n_head": 16, "hidden_size": 1024}
    assert bytes_per_token(older) == 2 * 24 * 16 * 64 * 2


def test_two_spellings_that_disagree_are_refused():
    with pytest.raises(PlanError, match="num_hidden_layers = 32, n_layer = 31"):
        find_model(changed(n_layer=31))


@pytest.mark.parametrize(
    ("fields", "kv_heads"),
    [
        ({"multi_query": True, "new_decoder_architecture": False, "num_kv_heads": 71}, 1),
        ({"multi_query": False, "new_decoder_architecture": False}, 71),
        ({"multi_query": True, "new_decoder_architecture": True, "num_kv_heads": 8}, 8),
    ],
)
def test_falcons_key_heads_follow_from_two_flags(fields, kv_heads):
    falcon = {"model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71}
    assert bytes_per_token({**falcon, **fields}) == 2 * 32 * kv_heads * 64 * 2


def test_a_falcon_without_its_flags_is_bounded_from_above():
    falcon = {"model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71}
    memory = find_model({**falcon, "num_kv_heads": 8})
    assert memory.bounds and memory.layers[0].num_kv_heads == 71


def test_transformers_stores_falcon_40bs_key_heads_once_per_query_head():
    ideal, stored = (plan("falcon-40b", context=1024, engine=engine) for engine in ("ideal", "transformers"))
    assert stored.bytes == 16 * ideal.bytes


def test_a_window_that_is_switched_off_is_none():
    qwen = changed(model_type="qwen2", use_sliding_window=False, sliding_window=128, max_window_layers=3)
    assert windows(qwen) == [(32, "full", None)]


def test_the_upper_layers_are_those_with_the_window():
    qwen = changed(model_type="qwen2", use_sliding_window=True, sliding_window=128, max_window_layers=3)
    assert windows(qwen) == [(3, "full", None), (29, "sliding", 128)]


@pytest.mark.parametrize(
    ("model_type", "full", "period"),
    [("gemma2", 16, 2), ("gemma3_text", 5, 6), ("gemma3n_text", 6, 5), ("gpt_oss", 16, 2), ("cohere2", 8, 4)],
)
def test_a_pattern_that_only_the_class_knows(model_type, full, period):
    config = changed(model_type=model_type, sliding_window=77, head_dim=64)
    assert 32 // period == full
    assert sorted(windows(config)) == [(full, "full", None), (32 - full, "sliding", 77)]


def test_llama_4_sees_chunks_in_three_of_four_layers():
    config = changed(model_type="llama4_text", attention_chunk_size=512, head_dim=128)
    assert windows(config) == [(24, "chunked", 512), (8, "full", None)]


def test_a_list_of_layer_types_goes_before_the_pattern():
    kinds = ["full_attention"] * 30 + ["sliding_attention"] * 2
    assert windows(changed(model_type="gemma2", head_dim=64, sliding_window=5, layer_types=kinds)) == [
        (30, "full", None),
        (2, "sliding", 5),
    ]


def test_a_list_of_another_length_is_refused():
    with pytest.raises(PlanError, match="lists 31 layers"):
        find_model(changed(model_type="gemma2", layer_types=["full_attention"] * 31))


def test_a_layer_kind_nobody_knows_is_refused_by_name():
    with pytest.raises(PlanError, match="'telepathy'"):
        find_model(changed(model_type="gemma2", layer_types=["telepathy"] * 32))


def test_an_old_mistral_forgets_in_every_layer():
    assert windows("mistral-7b-v0.1") == [(32, "sliding", 4096)]
    assert windows("mistral-7b-v0.3") == [(32, "full", None)]


def test_a_window_that_a_file_leaves_out_is_no_window_and_a_bound():
    memory = find_model(changed(model_type="mistral"))
    assert memory.layers[0].window is None and memory.bounds


def test_latent_attention_keeps_one_vector_whatever_the_heads():
    # 61 layers of 512 + 64 numbers; expanded, 128 heads of 192 + 128 numbers would be 71 times that.
    assert bytes_per_token("deepseek-v3") == 61 * 576 * 2
    assert round(61 * 128 * (192 + 128) * 2 / bytes_per_token("deepseek-v3")) == 71


def test_an_index_of_sparse_attention_is_counted_too():
    v3 = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_hidden_layers": 61, "num_attention_heads": 128}
    assert (
        bytes_per_token({"model_type": "deepseek_v32", "index_head_dim": 128, **v3}) == 61 * (576 + 128) * 2
    )


def test_longcats_layers_hold_two_attentions_each():
    flash = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_layers": 28, "num_attention_heads": 64}
    assert bytes_per_token({"model_type": "longcat_flash", **flash}) == 2 * 28 * 576 * 2


GEMMA_4 = {
    **{"model_type": "gemma4_text", "hidden_size": 2304, "num_hidden_layers": 12, "num_attention_heads": 8},
    **{"num_key_value_heads": 4, "head_dim": 256, "sliding_window": 512, "global_head_dim": 384},
}
"""2 full layers and 10 with a window."""


def test_full_layers_may_have_a_geometry_of_their_own():
    assert bytes_per_token(GEMMA_4) == 2 * (2 * 4 * 384 + 10 * 4 * 256) * 2


def test_layers_whose_values_equal_their_keys_use_both_slots():
    equal = {**GEMMA_4, "attention_k_eq_v": True, "num_global_key_value_heads": 2}
    assert bytes_per_token(equal) == 2 * (2 * 2 * 384 + 10 * 4 * 256) * 2


def test_the_same_geometry_as_newer_files_spell_it():
    layers = {
        "05": {"head_dim": 384, "num_key_value_heads": 2},
        "11": {"head_dim": 384, "num_key_value_heads": 2},
    }
    newer = {**GEMMA_4, "per_layer_config": layers}
    del newer["global_head_dim"]
    assert bytes_per_token(newer) == 2 * (2 * 2 * 384 + 10 * 4 * 256) * 2


def test_keys_longer_than_values_and_a_window_that_leaves_out_the_query():
    mimo = {"head_dim": 192, "v_head_dim": 128, "num_key_value_heads": 4, "swa_num_key_value_heads": 8}
    config = changed(model_type="mimo_v2_flash", num_hidden_layers=12, sliding_window_size=128, **mimo)
    assert windows(config) == [(3, "full", None), (9, "sliding", 129)]
    assert bytes_per_token(config) == (3 * 4 + 9 * 8) * (192 + 128) * 2
    del config["swa_num_key_value_heads"]  # twice those of full layers, as its class has
    assert bytes_per_token(config) == (3 * 4 + 9 * 8) * (192 + 128) * 2


def test_layers_that_reuse_earlier_keys_keep_none():
    # Full layers are the 5th, 10th, ...: three of the first 19 of 32, and the last 13 keep nothing.
    config = changed(model_type="gemma3n_text", sliding_window=9, head_dim=64, num_kv_shared_layers=13)
    assert windows(config) == [(16, "sliding", 9), (3, "full", None)]
    with pytest.raises(PlanError, match="32 of 32 layers"):
        find_model({**config, "num_kv_shared_layers": 32})


def test_cross_layer_sharing_keeps_each_third_layer():
    shared = changed(model_type="hunyuan", use_cla=True, cla_share_factor=3)
    assert bytes_per_token(shared) == 131_072 // 32 * 11


def test_key_heads_may_differ_by_layer():
    config = changed(num_hidden_layers=3, num_key_value_heads=[1, 0, 4])
    assert bytes_per_token(config) == 2 * (1 + 4) * 128 * 2


def test_a_hybrid_keeps_a_fixed_state_beside_few_layers_of_keys():
    memory = find_model("qwen3.5-27b")
    assert 2 * memory.numbers(1) == 65_536
    assert round(memory.state_bytes / 2**20, 1) == 146.8
    made = plan("qwen3.5-27b", users=3, context=1000)
    assert made.bytes == 3 * (1000 * 65_536 + memory.state_bytes)


def test_only_ten_of_118_layers_hold_keys():
    pattern = ("M-M-M-M-M-*" * 10 + "M-M-M-M-")[:118]
    nemotron = {"hybrid_override_pattern": pattern, "ssm_state_size": 256, "mamba_num_heads": 256}
    nemotron |= {"mamba_head_dim": 64, "n_groups": 8, "conv_kernel": 4, "head_dim": 128}
    memory = find_model(changed(model_type="nemotron_h", num_hidden_layers=118, **nemotron))
    assert memory.num_layers == pattern.count("*") == 10
    assert memory.states[0].count == pattern.count("M")
    # Heads of 64 x 256 numbers in float32, and 3 inputs of 256 * 64 + 2 * 8 * 256 channels in 16 bits.
    assert memory.states[0].bytes_per_layer == 4 * 256 * 64 * 256 + 2 * 3 * (256 * 64 + 2 * 8 * 256)


def test_a_model_without_attention_grows_with_users_alone():
    mamba = {"model_type": "mamba", "hidden_size": 768, "num_hidden_layers": 24, "expand": 2}
    mamba |= {"state_size": 16, "conv_kernel": 4}
    short, long = (plan(mamba, users=5, context=tokens).bytes for tokens in (1, 100_000))
    assert short == long == 5 * 24 * (4 * 1536 * 16 + 2 * 1536 * 3)


def test_jambas_attention_layers_follow_from_period_and_offset():
    jamba = {"attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_state": 16, "mamba_d_conv": 4}
    memory = find_model(changed(model_type="jamba", mamba_expand=2, **jamba))
    assert (memory.num_layers, memory.states[0].count) == (4, 28)


def test_an_encoder_decoder_keeps_its_own_text_and_the_encoders():
    memory = find_model("whisper-large-v3")
    assert memory.numbers(100) == 2 * 32 * 20 * 64 * (100 + 1500)
    t5 = {"model_type": "t5", "d_model": 512, "d_kv": 64, "num_heads": 8, "num_layers": 3}
    assert find_model({**t5, "num_decoder_layers": 6}).numbers(10) == 2 * 6 * 8 * 64 * (10 + 10)


def test_an_encoder_keeps_nothing_and_is_refused():
    with pytest.raises(PlanError, match="no KV cache"):
        find_model(changed(model_type="bert"))


def test_pictures_are_kept_by_the_layers_that_cross():
    layers = {"num_hidden_layers": 10, "cross_attention_layers": [3, 8]}
    memory = find_model(changed(model_type="mllama_text_model", **layers))
    assert memory.numbers(7) == 2 * 8 * 128 * (8 * 7 + 2 * 4 * 1601)


def test_a_context_beyond_the_models_own_is_said_and_not_refused():
    made = plan("llama-3-8b", context=8193)
    assert made.bytes == 8193 * 131_072
    assert any("8,193 tokens are beyond the 8,192" in warning for warning in made.warnings)
    assert not any("beyond" in warning for warning in plan("llama-3-8b", context=8192).warnings)


def test_an_unknown_type_is_bounded_by_the_largest_of_what_its_file_names():
    odd = changed(model_type="never-heard-of", swa_num_key_value_heads=11, global_head_dim=192)
    memory = find_model(odd)
    assert memory.numbers(1) == 2 * 32 * 11 * 256  # no head_dim in the file: 256 is the most that is common
    assert memory.bounds and plan(odd, context=9).is_bound
    assert any("upper bound" in warning for warning in plan(odd, context=9).warnings)


@pytest.mark.parametrize("field", ["ssm_state_size", "mamba_d_conv", "linear_num_key_heads", "rwkv_version"])
def test_an_unknown_type_that_keeps_something_else_is_refused(field):
    with pytest.raises(PlanError, match=field):
        find_model(changed(model_type="never-heard-of", **{field: 4}))


def test_a_folder_counts_its_weights_as_they_lie_there(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    for name, size in (("model-00001-of-00002.safetensors", 701), ("model-00002-of-00002.safetensors", 97)):
        (tmp_path / name).write_bytes(bytes(size))
    memory = find_model(tmp_path)
    assert (memory.name, memory.weight_bytes) == (tmp_path.name, 798)
    assert find_model(tmp_path / "config.json").numbers(1) * 2 == 131_072


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "cannot be read as JSON"),
        (b"\xff\xfe", "cannot be read as JSON"),
        (b"[1, 2]", "hold an object"),
        (b"[" * 100_000, "cannot be read as JSON"),
        (b'{"model_type": "llama", "num_hidden_layers": 1' + b"0" * 5000 + b"}", "cannot be read as JSON"),
    ],
)
def test_a_file_that_is_no_config_is_one_clear_line(tmp_path, content, said):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(PlanError, match=said):
        find_model(path)


def test_a_hub_id_is_fetched_only_when_nothing_else_fits(tmp_path, monkeypatch):
    asked = []

    def download(name, file):
        asked.append((name, file))
        path = tmp_path / file
        path.write_text(json.dumps(LLAMA))
        return str(path)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=download))
    assert find_model("someone/something").numbers(1) * 2 == 131_072
    assert asked == [("someone/something", "config.json")]
    assert find_model("meta-llama/Meta-Llama-3-8B").name == "llama-3-8b"
    assert len(asked) == 1


def test_a_hub_that_does_not_answer_is_one_clear_error(monkeypatch):
    def fail(name, file):
        raise OSError("no route to host")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=fail))
    with pytest.raises(PlanError, match=r"could not be fetched .* give the path"):
        find_model("someone/something")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(PlanError, match=r"qkv\[hub\]"):
        find_model("someone/something")


def test_a_folder_without_a_config_says_so(tmp_path):
    with pytest.raises(PlanError, match=r"expected a config\.json"):
        find_model(tmp_path)
