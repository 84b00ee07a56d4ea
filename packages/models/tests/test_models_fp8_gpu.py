"""e4m3 models on a CUDA device in bfloat16, few tokens and many, against the widened weights in float32."""

import json

import pytest
import torch
from llm_models import Decoder, load_model, resolve
from llm_models.blocks.step import Packed
from llm_models.loading.e4m3 import E4M3, row_scales

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
SECTIONS = {
    "at load": None,
    "block": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "static": {"quant_method": "fp8", "activation_scheme": "static"},
}


def hidden(model: Decoder, tokens: int) -> torch.Tensor:
    ids = torch.randint(512, (tokens,), generator=torch.Generator().manual_seed(tokens)).cuda()
    positions = torch.arange(tokens, device="cuda")
    ends = torch.tensor([0, tokens], dtype=torch.int32, device="cuda")
    return model.forward_packed(ids, positions, Packed(ends, tokens)).float()


def widened(model: Decoder) -> Decoder:
    """The same model with float32 weights."""
    given = dict(model.named_parameters())
    wide = {}
    for name, parameter in given.items():
        if parameter.dtype == E4M3:
            scales = row_scales(given[f"{name}_scale"], *parameter.shape)
            if scales.shape[1] > 1:
                scales = scales.repeat_interleave(128, 1)[:, : parameter.shape[1]]
            wide[name] = parameter.float() * scales
        elif not name.endswith(("weight_scale", "input_scale")):
            wide[name] = parameter.float()
    return Decoder(model.spec, wide)


@pytest.mark.parametrize("name", SECTIONS)
def test_it_equals_the_widened_model(tmp_path, name):
    section = SECTIONS[name]
    config = CONFIG if section is None else CONFIG | {"quantization_config": section}
    (tmp_path / "config.json").write_text(json.dumps(config))
    option = {"quantization": "fp8"} if section is None else {}
    model = load_model(
        resolve(str(tmp_path)), dtype=torch.bfloat16, device="cuda", load_format="dummy", **option
    )
    assert isinstance(model, Decoder)
    narrow = [key for key, parameter in model.named_parameters() if parameter.dtype == E4M3]
    assert len(narrow) == 16
    exact = widened(model)
    # 37 and 301 tokens are no multiples of 4.
    for tokens in (1, 16, 37, 64, 65, 128, 301, 1024):
        found, expected = hidden(model, tokens), hidden(exact, tokens)
        # Quantized activations cost some 10 %, also in float32 on a CPU.
        assert float((found - expected).norm() / expected.norm()) < 0.13, tokens


def test_quantizing_dummy_weights_takes_little_more_memory_than_they_do(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": 24}))
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model = load_model(
        resolve(str(tmp_path)),
        dtype=torch.bfloat16,
        device="cuda",
        load_format="dummy",
        quantization="fp8",
    )
    size = sum(parameter.nbytes for parameter in model.parameters())
    wide = sum(p.numel() * 2 for name, p in model.named_parameters() if "scale" not in name)
    assert size < 0.55 * wide
    assert torch.cuda.max_memory_allocated() - before < size + (1 << 28)
