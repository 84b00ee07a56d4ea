"""Owns the parity of the transformers fallback with transformers itself, and its refusals."""

import json
import warnings

import pytest
import torch
import transformers
from llm_models.errors import CorruptFile, MissingTensor, UnexpectedTensor, UnsupportedConfig, WrongShape
from llm_models.fallback import fallback_verdict, load_fallback
from llm_models.fallback.mask_patterns import MaskPattern, pattern_in, pattern_of
from llm_models.fallback.probe_steps import LENGTHS, run_steps
from llm_models.files import resolve
from safetensors.torch import load_file, save_file
from transformers import dynamic_module_utils

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GQA = SMALL | {"num_key_value_heads": 2}
MOE = {"num_experts_per_tok": 2, "num_local_experts": 4}
BART = {
    "vocab_size": 96, "d_model": 32, "decoder_layers": 2, "decoder_ffn_dim": 48, "decoder_attention_heads": 4,
    "encoder_layers": 1, "encoder_ffn_dim": 48, "encoder_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
MLA = {"q_lora_rank": 16, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6}

# name: (class, config fields, kind)
CASES = {
    "llama": ("LlamaForCausalLM", GQA, "paged"),
    "window": ("MistralForCausalLM", GQA | {"sliding_window": 4}, "paged"),
    "caps-and-windows": ("Gemma2ForCausalLM", GQA | {"head_dim": 8, "sliding_window": 4}, "paged"),
    "sinks-and-experts": ("GptOssForCausalLM", GQA | MOE | {"head_dim": 8, "sliding_window": 4}, "paged"),
    "value-size": (
        "DeepseekV3ForCausalLM",
        SMALL | MLA | {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
                       "moe_intermediate_size": 16, "first_k_dense_replace": 1},
        "paged",
    ),
    "learned-positions": (
        "GPT2LMHeadModel", {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
        "paged"),
    "positions-counted-by-a-module": ("BartForCausalLM", BART, "paged"),
    "positions-from-padding-on": ("RobertaForCausalLM", SMALL | {"is_decoder": True}, "paged"),
    "chunks": (
        "Llama4ForCausalLM",
        GQA | MOE | {"head_dim": 8, "attention_chunk_size": 4, "intermediate_size_mlp": 48,
                     "moe_layers": [1], "no_rope_layers": [1, 0]},
        "recompute",
    ),
    "encoder-as-decoder": ("BertLMHeadModel", SMALL | {"is_decoder": True}, "paged"),
    "recurrent": (
        "RwkvForCausalLM",
        {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "context_length": 64}, "recompute"),
    "state-space": (
        "MambaForCausalLM", {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
        "recompute"),
    "relative-positions": ("XLNetLMHeadModel", {
        "vocab_size": 96, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}, "recompute"),
}  # fmt: skip


@pytest.fixture
def checkpoint(tmp_path):
    """Saves a seeded model of transformers; returns it and its folder."""

    def make(name: str, fields: dict):
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            found = getattr(transformers, name)
            model = found(found.config_class(**fields)).eval()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter) * 0.1)
            model.save_pretrained(tmp_path)
        return model, tmp_path

    return make


def load(folder, **options):
    return load_fallback(resolve(str(folder)), dtype=torch.float32, device="cpu", **options)


@pytest.mark.parametrize("case", CASES)
def test_equals_transformers_in_chunks_and_batches(case, checkpoint):
    name, fields, kind = CASES[case]
    reference, folder = checkpoint(name, fields)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # The verdict before loading holds after it.
        model = load(folder)
    assert model.verdict.kind == kind == fallback_verdict(resolve(str(folder)).config).kind
    generator = torch.Generator().manual_seed(7)
    ids = {row: torch.randint(3, 96, (count,), generator=generator) for row, count in LENGTHS.items()}
    found = run_steps(model, ids)
    for row, of_row in ids.items():
        with torch.no_grad():
            expected = reference(input_ids=of_row[None], use_cache=False).logits[0]
        assert found[row].shape == expected.shape
        if case == "relative-positions":  # Every token sees all; the last one's scores are what a step needs.
            found[row], expected = found[row][-1], expected[-1]
        assert (found[row] - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_windows_are_declared_to_the_cache(checkpoint):
    _, folder = checkpoint("Gemma2ForCausalLM", GQA | {"head_dim": 8, "sliding_window": 4})
    assert [cache.window for cache in load(folder).caches] == [4, None]


def test_two_models_do_not_see_each_other(checkpoint, tmp_path):
    _, folder = checkpoint("LlamaForCausalLM", GQA)
    one, two = load(folder), load(folder)
    ids = {row: torch.arange(3, 3 + count) for row, count in LENGTHS.items()}
    before = run_steps(one, ids)
    run_steps(two, {row: values + 9 for row, values in ids.items()})
    assert torch.equal(run_steps(one, ids)[0], before[0])


def rewritten(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_missing_tensor_is_named(checkpoint):
    _, folder = checkpoint("LlamaForCausalLM", GQA)
    rewritten(folder, lambda tensors: tensors.pop("model.norm.weight"))
    with pytest.raises(MissingTensor, match=r"model\.norm\.weight"):
        load(folder)


def test_unexpected_tensor_is_named(checkpoint):
    _, folder = checkpoint("LlamaForCausalLM", GQA)
    rewritten(folder, lambda tensors: tensors.update(extra=torch.zeros(2)))
    with pytest.raises(UnexpectedTensor, match="extra"):
        load(folder)


def test_wrong_shape_is_named(checkpoint):
    _, folder = checkpoint("LlamaForCausalLM", GQA)
    rewritten(folder, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(31)}))
    with pytest.raises(WrongShape, match=r"model\.norm\.weight.*\[31\].*\[32\]"):
        load(folder)


def test_cut_file_is_an_error(checkpoint):
    _, folder = checkpoint("LlamaForCausalLM", GQA)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CorruptFile):
        load(folder)


def test_refuses_what_it_does_not_serve(checkpoint):
    _, folder = checkpoint("BertLMHeadModel", SMALL | {"is_decoder": False})
    with pytest.raises(UnsupportedConfig, match="is_decoder"):
        load(folder)


def test_remote_code_needs_the_flag(checkpoint):
    _, folder = checkpoint("LlamaForCausalLM", GQA)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["OwnForCausalLM"], "model_type": "own"}
    config["auto_map"] = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
    assert "trust_remote_code" in fallback_verdict(config).reason
    assert fallback_verdict(config).kind == "unsupported"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedConfig, match="trust_remote_code"):
        load(folder)


def test_remote_code_runs_with_the_flag(checkpoint, monkeypatch, tmp_path_factory):
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))
    reference, folder = checkpoint("LlamaForCausalLM", GQA)
    (folder / "own.py").write_text(
        "import transformers\n"
        "class OwnConfig(transformers.LlamaConfig):\n    model_type = 'own'\n"
        "class OwnForCausalLM(transformers.LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["OwnForCausalLM"], "model_type": "own"}
    config["auto_map"] = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
    (folder / "config.json").write_text(json.dumps(config))
    model = load(folder, trust_remote_code=True)
    ids = {row: torch.arange(3, 3 + count) for row, count in LENGTHS.items()}
    with torch.no_grad():
        expected = reference(input_ids=ids[0][None]).logits[0]
    assert model.verdict.kind == "paged"
    assert (run_steps(model, ids)[0] - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"architectures": ["NoSuchForCausalLM"], "model_type": "llama"}, "NoSuchForCausalLM"),
        ({"architectures": ["BertForMaskedLM"], "model_type": "bert"}, "causal"),
        ({"model_type": "llama"}, "architectures"),
        (LLAMA | {"quantization_config": {"a": 1}}, "quantized"),
        (LLAMA | {"hidden_size": "wide"}, "hidden_size"),
        (LLAMA | {"model_type": "lama"}, "model_type 'lama'"),
    ],
)
def test_unsupported_with_a_reason(config, reason):
    verdict = fallback_verdict(config)
    assert verdict.kind == "unsupported"
    assert reason in verdict.reason


@pytest.mark.parametrize(
    ("name", "fields", "limit"),
    [
        ("LlamaForCausalLM", GQA, 64),
        ("BartForCausalLM", BART, 64),
        ("RobertaForCausalLM", SMALL | {"is_decoder": True, "pad_token_id": 1}, 62),
        (
            "LlamaForCausalLM",
            GQA | {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 100.0,
                                       "original_max_position_embeddings": 32}},
            32,
        ),
    ],
)  # fmt: skip
def test_positions_end_where_the_class_has_no_more(name, fields, limit, checkpoint):
    _, folder = checkpoint(name, fields)
    assert load(folder).spec.max_positions == limit


def test_masks_are_read_by_asking():
    from transformers.masking_utils import (
        bidirectional_mask_function,
        causal_mask_function,
        chunked_causal_mask_function,
        sliding_window_causal_mask_function,
    )

    def found(function, size):
        return pattern_of(function, size, 11, "cpu")

    assert found(causal_mask_function, None) == MaskPattern()
    assert found(sliding_window_causal_mask_function(1000), 1000) == MaskPattern(window=1000)
    left_padding = torch.zeros(1, dtype=torch.long)
    assert found(chunked_causal_mask_function(50, left_padding), 50) == MaskPattern(chunk=50)
    assert found(bidirectional_mask_function, None) is None
    for pattern in (MaskPattern(), MaskPattern(window=7), MaskPattern(chunk=9)):
        mask = pattern.tensor(5, 5, "cpu")
        assert pattern_in(mask[:, :, 1:, :3]) == pattern
        assert pattern_in(mask + 0.5) is None
        assert pattern_in(mask == 0) is None
