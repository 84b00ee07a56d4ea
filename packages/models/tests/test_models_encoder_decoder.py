"""Encoder-decoders against tiny random transformers models: logits and greedy tokens over paged caches."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
import transformers
from llm_kernels.ops import AttentionMetadata
from llm_models import (
    ConfigError,
    CrossCacheSpec,
    EncoderDecoder,
    MissingTensor,
    UnsupportedConfig,
    encoder_decoder_spec_for,
    load_encoder_decoder,
    load_model,
    load_pooling_model,
    resolve,
)
from llm_models.encoder_decoder import encoder_decoder_parameters
from llm_models.parameters import Shard
from safetensors.torch import load_file, save_file
from torch import Tensor

VOCABULARY = 96
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 4, "num_layers": 2, "num_decoder_layers": 3,
      "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12, "vocab_size": VOCABULARY,
      "decoder_start_token_id": 0}  # fmt: skip
BART = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 40, "vocab_size": VOCABULARY,
        "max_position_embeddings": 64, "decoder_start_token_id": 2, "pad_token_id": 1, "eos_token_id": 2,
        "init_std": 0.2}  # fmt: skip
WHISPER = BART | {"num_mel_bins": 10, "max_source_positions": 25, "max_target_positions": 64,
                  "bos_token_id": 2, "suppress_tokens": None, "begin_suppress_tokens": None}  # fmt: skip
# name: (config class, model class, config)
CASES = {
    "t5": ("T5Config", "T5ForConditionalGeneration", T5),
    "t5-gated": ("T5Config", "T5ForConditionalGeneration",
                 T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "mt5": ("MT5Config", "MT5ForConditionalGeneration", T5 | {"feed_forward_proj": "gated-gelu"}),
    "umt5": ("UMT5Config", "UMT5ForConditionalGeneration", T5 | {"feed_forward_proj": "gated-gelu"}),
    "bart": ("BartConfig", "BartForConditionalGeneration", BART),
    "bart-scaled-relu": ("BartConfig", "BartForConditionalGeneration",
                         BART | {"scale_embedding": True, "activation_function": "relu"}),
    "plbart": ("PLBartConfig", "PLBartForConditionalGeneration", BART),
    "mbart": ("MBartConfig", "MBartForConditionalGeneration", BART | {"scale_embedding": True}),
    "blenderbot": ("BlenderbotConfig", "BlenderbotForConditionalGeneration", BART),
    "pegasus": ("PegasusConfig", "PegasusForConditionalGeneration", BART | {"scale_embedding": True}),
    "marian": ("MarianConfig", "MarianMTModel",
               BART | {"activation_function": "swish", "pad_token_id": 95, "decoder_start_token_id": 95}),
    "marian-two-vocabularies": ("MarianConfig", "MarianMTModel",
                                BART | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 80}),
    "m2m100": ("M2M100Config", "M2M100ForConditionalGeneration", BART | {"scale_embedding": True}),
    "whisper": ("WhisperConfig", "WhisperForConditionalGeneration", WHISPER),
}  # fmt: skip


def _reference(case: str, **changes: object) -> transformers.PreTrainedModel:
    """A seeded model whose norms, biases and buffers of biases are random too."""
    config_class, model_class, config = CASES[case]
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        built = getattr(transformers, config_class)(**config, **changes, attn_implementation="eager")
        model = getattr(transformers, model_class)(built).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_fixed = "embed_positions" in name and case.startswith(("pegasus", "marian"))
            named = ("relative_attention_bias", "embed_positions")
            if not is_fixed and (parameter.dim() == 1 or any(part in name for part in named)):
                parameter.add_(torch.randn_like(parameter) * 0.3)
        for name, buffer in model.named_buffers():
            if name == "final_logits_bias":
                buffer.add_(torch.randn_like(buffer))
    return model


def _saved(model: transformers.PreTrainedModel, folder: Path) -> EncoderDecoder:
    model.save_pretrained(folder)
    return load_encoder_decoder(resolve(str(folder)), dtype=torch.float32, device="cpu")


def _inputs(case: str, lengths: list[int]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    if case == "whisper":  # transformers takes only the longest.
        return [torch.randn(10, 50, generator=generator) for _ in lengths]
    return [torch.randint(3, 80, (length,), generator=generator) for length in lengths]


def _expected(model: transformers.PreTrainedModel, one: Tensor, tokens: list[int]) -> Tensor:
    name = "input_features" if one.ndim == 2 else "input_ids"
    with torch.no_grad():
        return model(**{name: one[None]}, decoder_input_ids=torch.tensor([tokens]), use_cache=False).logits[0]


@dataclass
class CrossRun:
    """Steps over sequences whose blocks, of their own and of their encoder's states, lie at random places."""

    model: EncoderDecoder
    block_size: int = 4
    num_blocks: int = 128
    own: dict[str, list[int]] = field(default_factory=dict)
    memory: dict[str, list[int]] = field(default_factory=dict)
    memory_lens: dict[str, int] = field(default_factory=dict)
    computed: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.caches = self.model.allocate_caches(self.num_blocks, self.block_size)
        for cache in (item for pair in self.caches for item in pair):
            cache.fill_(37.0)  # What a reader must never see.
        self.free = torch.randperm(self.num_blocks, generator=torch.Generator().manual_seed(0)).tolist()

    def open(self, inputs: dict[str, Tensor]) -> None:
        states = self.model.encode(list(inputs.values()))
        slots = []
        for name, states_SE in zip(inputs, states, strict=True):
            self.memory_lens[name] = len(states_SE)
            slots += self._slots(self.memory.setdefault(name, []), range(len(states_SE)))
        count = len(self.model.cross_caches)
        self.model.write_cross(torch.cat(states), [torch.tensor(slots)] * count, self.caches)

    def step(self, rows: dict[str, list[int]]) -> dict[str, Tensor]:
        names = sorted(rows, key=lambda name: len(rows[name]) > 1)
        positions, slots, ids = [], [], []
        for name in names:
            start = self.computed.get(name, 0)
            mine = range(start, start + len(rows[name]))
            slots += self._slots(self.own.setdefault(name, []), mine)
            positions += mine
            ids += rows[name]
            self.computed[name] = mine.stop
        lengths = [len(rows[name]) for name in names]
        own = self._metadata(lengths, [self.own[n] for n in names], [self.computed[n] for n in names],
                             positions, slots)  # fmt: skip
        cross = self._metadata(lengths, [self.memory[n] for n in names], [self.memory_lens[n] for n in names],
                               positions, [-1] * len(ids))  # fmt: skip
        metadata = [cross if isinstance(c, CrossCacheSpec) else own for c in self.model.caches]
        hidden = self.model.forward(torch.tensor(ids), metadata, self.caches)
        return dict(zip(names, self.model.logits(hidden).split(lengths), strict=True))

    def _slots(self, table: list[int], positions: range) -> list[int]:
        while len(table) * self.block_size < positions.stop:
            table.append(self.free.pop())
        return [table[p // self.block_size] * self.block_size + p % self.block_size for p in positions]

    def _metadata(self, lengths, tables, contexts, positions, slots) -> AttentionMetadata:
        width = max(len(table) for table in tables)
        return AttentionMetadata(
            cu_query_lens=torch.tensor([0, *lengths]).cumsum(0).to(torch.int32),
            context_lens=torch.tensor(contexts, dtype=torch.int32),
            block_tables=torch.tensor([table + [0] * (width - len(table)) for table in tables],
                                      dtype=torch.int32),
            slot_mapping=torch.tensor(slots),
            positions=torch.tensor(positions),
            num_decodes=sum(length == 1 for length in lengths),
            max_query_len=max(lengths),
            max_context_len=max(contexts),
        )  # fmt: skip


def _error(got: Tensor, wanted: Tensor) -> float:
    return float((got - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("case", CASES)
def test_logits_and_greedy_tokens_are_those_of_transformers(case, tmp_path):
    """Batched, with inputs of different lengths; first in one pass and in chunks, then token by token."""
    reference = _reference(case)
    run = CrossRun(_saved(reference, tmp_path))
    inputs = dict(zip("abc", _inputs(case, [19, 3, 11]), strict=True))
    run.open({"a": inputs["a"], "b": inputs["b"]})
    run.open({"c": inputs["c"]})
    prompts = {"a": [2, 7, 9, 30, 31, 5, 60, 61, 62, 63, 64, 65, 66, 67, 68], "b": [2], "c": [2, 40, 41]}
    first = run.step({"a": prompts["a"][:6], "b": prompts["b"], "c": prompts["c"]})
    last = run.step({"a": prompts["a"][6:]})
    got = {"a": torch.cat((first["a"], last["a"])), "b": first["b"], "c": first["c"]}
    for name, prompt in prompts.items():
        assert _error(got[name], _expected(reference, inputs[name], prompt)) < 1e-4
    tokens = {name: [*prompt, int(got[name][-1].argmax())] for name, prompt in prompts.items()}
    for _ in range(31):
        scores = run.step({name: made[-1:] for name, made in tokens.items()})
        for name, made in tokens.items():
            made.append(int(scores[name][-1].argmax()))
    for name, made in tokens.items():
        start, wanted = len(prompts[name]), _expected(reference, inputs[name], made[:-1])
        assert _error(scores[name][-1], wanted[-1]) < 1e-4
        assert made[start:] == wanted[start - 1 :].argmax(-1).tolist()


def test_a_head_of_its_own_as_flan_t5_has_it(tmp_path):
    """As on the Hub: `tie_word_embeddings` false, the head in the file, copies of the table beside it."""
    reference = _reference("t5-gated")
    reference.save_pretrained(tmp_path)
    reference.lm_head.weight = torch.nn.Parameter(torch.randn(VOCABULARY, 32))
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = reference.lm_head.weight.detach().clone()
    tensors["encoder.embed_tokens.weight"] = tensors["shared.weight"].clone()
    tensors["decoder.embed_tokens.weight"] = tensors["shared.weight"].clone()
    unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    tensors[unused] = torch.randn(8, 4)
    save_file(tensors, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    del config["scale_decoder_outputs"]
    config |= {"tie_word_embeddings": False, "torch_dtype": "float32", "n_positions": 512}
    (tmp_path / "config.json").write_text(json.dumps(config))
    run = CrossRun(load_encoder_decoder(resolve(str(tmp_path)), dtype=torch.float32, device="cpu"))
    [text] = _inputs("t5-gated", [9])
    run.open({"a": text})
    tokens = [0, 5, 6, 7]
    assert _error(run.step({"a": tokens})["a"], _expected(reference, text, tokens)) < 1e-4


def test_a_checkpoint_of_the_bare_model(tmp_path):
    """As facebook/bart-base is: names without `model.`, the table three times, no bias of the scores."""
    reference = _reference("bart")
    reference.final_logits_bias.zero_()
    reference.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["final_logits_bias"]
    tensors = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    for side in ("encoder", "decoder"):
        tensors[f"{side}.embed_tokens.weight"] = tensors["shared.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    run = CrossRun(load_encoder_decoder(resolve(str(tmp_path)), dtype=torch.float32, device="cpu"))
    [text] = _inputs("bart", [9])
    run.open({"a": text})
    assert _error(run.step({"a": [2, 5, 6]})["a"], _expected(reference, text, [2, 5, 6])) < 1e-4


def test_the_encoder_of_t5_as_an_embedder(tmp_path):
    torch.manual_seed(0)
    reference = transformers.T5EncoderModel(transformers.T5Config(**T5)).eval()
    reference.save_pretrained(tmp_path)
    model = load_pooling_model(resolve(str(tmp_path)), dtype=torch.float32, device="cpu")
    texts = _inputs("t5", [17, 4])
    vectors = model.run([text.tolist() for text in texts])
    for vector, text in zip(vectors, texts, strict=True):
        with torch.no_grad():
            wanted = reference(text[None]).last_hidden_state[0].mean(0)
        assert _error(vector, wanted) < 1e-4


def test_half_precision_runs(tmp_path):
    reference = _reference("whisper")
    reference.save_pretrained(tmp_path)
    run = CrossRun(load_encoder_decoder(resolve(str(tmp_path)), dtype=torch.bfloat16, device="cpu"))
    [sound] = _inputs("whisper", [1])
    run.open({"a": sound})
    assert _error(run.step({"a": [2, 5, 6]})["a"], _expected(reference, sound, [2, 5, 6])) < 0.1


def test_sounds_may_be_shorter_than_the_longest(tmp_path):
    run = CrossRun(_saved(_reference("whisper"), tmp_path))
    short, long = torch.randn(10, 31), torch.randn(10, 50)
    alone, together = run.model.encode([short])[0], run.model.encode([long, short])
    assert [len(states) for states in together] == [25, 16]
    assert _error(together[1], alone) < 1e-5


def test_inputs_that_cannot_be_encoded_are_named(tmp_path):
    model = _saved(_reference("whisper"), tmp_path / "whisper")
    for bad, message in [
        ([], "no input"),
        ([torch.zeros(10, 52)], "26 states; it must be 1 to 25"),
        ([torch.zeros(10, 0)], "0 states"),
        ([torch.zeros(8, 50)], r"\[10, frames\], not \[8, 50\]"),
    ]:
        with pytest.raises(ValueError, match=message):
            model.encode(bad)
    text = _saved(_reference("bart"), tmp_path / "bart")
    with pytest.raises(ValueError, match="65 states"):
        text.encode([torch.zeros(65, dtype=torch.int64)])
    with pytest.raises(ValueError, match=r"ids \[tokens\]"):
        text.encode([torch.zeros((2, 3), dtype=torch.int64)])
    with pytest.raises(ValueError, match="1 tensors of slots for 3 cross caches"):
        text.write_cross(torch.zeros(1, 32), [torch.zeros(1, dtype=torch.int64)], text.allocate_caches(2, 4))


def test_other_loaders_refuse_it(tmp_path):
    _saved(_reference("t5"), tmp_path)
    files = resolve(str(tmp_path))
    with pytest.raises(UnsupportedConfig, match="has an encoder: load_encoder_decoder"):
        load_model(files, dtype=torch.float32, device="cpu")
    with pytest.raises(UnsupportedConfig, match="no vectors"):
        load_pooling_model(files, dtype=torch.float32, device="cpu")


def test_a_missing_tensor_of_the_encoder_is_named(tmp_path):
    _reference("t5").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["encoder.block.1.layer.1.DenseReluDense.wo.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(MissingTensor, match=r"encoder\.block\.1\.layer\.1\.DenseReluDense\.wo\.weight"):
        load_encoder_decoder(resolve(str(tmp_path)), dtype=torch.float32, device="cpu")


@pytest.mark.parametrize(
    ("case", "change", "field"),
    [
        ("t5", {"feed_forward_proj": "gated-gated-gelu"}, "feed_forward_proj"),
        ("bart", {"encoder_attention_heads": 5}, "encoder_attention_heads"),
        ("whisper", {"scale_embedding": True}, "scale_embedding"),
        ("whisper", {"activation_function": "mish"}, "activation_function"),
    ],
)
def test_what_is_not_supported_is_named(case, change, field):
    _, model_class, config = CASES[case]
    with pytest.raises(ConfigError, match=field):
        encoder_decoder_spec_for({**config, **change, "architectures": [model_class]})


@pytest.mark.parametrize("case", ["t5", "bart", "whisper"])
def test_two_ranks_share_out_the_layers(case):
    _, model_class, config = CASES[case]
    spec = encoder_decoder_spec_for({**config, "architectures": [model_class]})
    whole = {one.name: one.shape for one in encoder_decoder_parameters(spec)}
    half = {one.name: one.shape for one in encoder_decoder_parameters(spec, Shard(1, 2))}
    assert half.keys() == whole.keys()
    shared = [
        "layers.0.attention.input",
        "encoder.layers.0.attention.input",
        "layers.0.cross_attention.memory",
    ]
    for name in (f"{module}.weight" for module in shared):
        assert half[name] == (whole[name][0] // 2, whole[name][1])


def test_two_ranks_equal_transformers(tmp_path):
    """Biases by distance, a table that both sides share, biases of the scores and convolutions among them."""
    tokens = [2, 7, 9, 30, 31, 5, 60]
    wanted = {}
    for case in ("t5", "umt5", "mbart", "marian-two-vocabularies", "whisper"):
        reference, [one] = _reference(case), _inputs(case, [19])
        reference.save_pretrained(tmp_path / case)
        torch.save({"input": one, "tokens": tokens}, tmp_path / case / "asked.pt")
        wanted[case] = _expected(reference, one, tokens)
    script = Path(__file__).with_name("encoder_decoder_rank.py")
    ranks = [subprocess.Popen([sys.executable, script, str(rank), "2", tmp_path]) for rank in range(2)]
    assert [process.wait(timeout=400) for process in ranks] == [0, 0]
    for case, expected in wanted.items():
        found = torch.load(tmp_path / case / "found.pt", weights_only=False)
        assert _error(found["logits"], expected) < 1e-4
        assert {cache.num_kv_heads for cache in found["caches"]} == {2 if "t5" in case else 1}
