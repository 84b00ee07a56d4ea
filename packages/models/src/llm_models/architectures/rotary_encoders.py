"""Owns the specs of encoders with rope: ModernBERT, NomicBERT, GTE, Jina v3 and EuroBERT."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import (
    attention,
    decoder,
    gated_mlp,
    head_size_of,
    layer_kinds,
    layer_norm,
    renamed,
    rms_norm,
)
from llm_models.architectures.encoder_parts import (
    both_sides,
    plain_mlp,
    post_norm,
    text_classifier,
    text_embedding,
    token_classifier,
)
from llm_models.architectures.layouts import sliding_rope_config
from llm_models.architectures.pooled_decoders import labels_of
from llm_models.blocks.layer import Branch, Layer, LayerSpec, pre_norm
from llm_models.blocks.mlp import MLP
from llm_models.blocks.norm import Norm
from llm_models.config import ConfigReader
from llm_models.errors import UnsupportedConfig
from llm_models.names import LLAMA_NAMES, Names, rows
from llm_models.pooling import Dense, PooledSpec, PoolingKind
from llm_models.rope import FrequencyFactors, Rope, rope_from_config
from llm_models.spec import DecoderSpec, Embedding


def _rope(config: Mapping[str, Any], theta: float, head_size: int, layer_type: str | None = None) -> Rope:
    positions = ConfigReader(config).positive_int("max_position_embeddings")
    return rope_from_config(
        config, head_size=head_size, max_positions=positions, layer_type=layer_type, theta=theta
    )


# ModernBERT

_MODERN_NAMES = Names(
    top={
        "model.embeddings.tok_embeddings": "embedding",
        "model.embeddings.norm": "embedding_norm",
        "model.final_norm": "final_norm",
        "head.dense": "dense",
        "head.norm": "dense.norm",
        "classifier": "classifier",
    },
    layer="model.layers.{i}",
    inside={
        "attn_norm": "attention.norm",
        "attn.Wqkv": rows("attention.query", "attention.key", "attention.value"),
        "attn.Wo": "attention.output",
        "mlp_norm": "mlp.norm",
        "mlp.Wi": rows("mlp.gate", "mlp.up"),
        "mlp.Wo": "mlp.down",
    },
    optional_prefix="model.",
    harmless=(r"(head|decoder)\..*",),
)


def _modern_norm(reader: ConfigReader) -> Norm:
    return Norm(
        eps=reader.positive_float("norm_eps", 1e-5), kind="layer", bias=reader.boolean("norm_bias", False)
    )


def _modern_windows(config: Mapping[str, Any]) -> list[int | None]:
    reader = ConfigReader(config)
    window = reader.positive_int("local_attention", 128) // 2 + 1
    kinds = layer_kinds(config)
    if kinds is None:
        period = reader.positive_int("global_attn_every_n_layers", 3)
        count = reader.positive_int("num_hidden_layers")
        return [window if index % period else None for index in range(count)]
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise UnsupportedConfig("layer_types", f"{kind!r} is neither full_ nor sliding_attention")
    return [window if kind == "sliding_attention" else None for kind in kinds]


def _modern_body(config: Mapping[str, Any]) -> DecoderSpec:
    reader, size = ConfigReader(config), head_size_of(config)
    norm, bias = _modern_norm(reader), reader.boolean("attention_bias", False)
    mlp = MLP(
        intermediate_size=reader.positive_int("intermediate_size"),
        activation=reader.activation("hidden_activation", "gelu"),
        bias=reader.boolean("mlp_bias", False),
    )
    everywhere = {**config, "rope_theta": config.get("global_rope_theta") or 160000.0}
    local = sliding_rope_config(config, config.get("local_rope_theta") or 10000.0)
    layers: list[LayerSpec] = []
    for window in _modern_windows(config):
        kind = "full_attention" if window is None else "sliding_attention"
        rope = _rope(everywhere if window is None else local, 10000.0, size, kind)
        mixer = replace(both_sides(config, bias=bias, rope=rope), sliding_window=window)
        first = Branch(blocks=(mixer,), pre=norm if layers else None)
        layers.append(Layer((first, Branch(blocks=(mlp,), pre=norm))))
    return decoder(
        {**config, "tie_word_embeddings": True},
        layers,
        final_norm=norm,
        names=_MODERN_NAMES,
        embedding=Embedding(vocab_size=reader.positive_int("vocab_size"), norm=norm),
    )


def _modern_head(config: Mapping[str, Any], pooling: PoolingKind) -> PooledSpec:
    reader, labels = ConfigReader(config), labels_of(config)
    dense = Dense(
        name="dense",
        size=reader.positive_int("hidden_size"),
        bias=reader.boolean("classifier_bias", False),
        activation=reader.activation("classifier_activation", "gelu"),
        norm=_modern_norm(reader),
    )
    head = (dense, Dense(name="classifier", size=len(labels)))
    return PooledSpec(body=_modern_body(config), pooling=pooling, head=head, labels=labels)


@architecture("ModernBertModel", "ModernBertForMaskedLM")
def modernbert(config: Mapping[str, Any]) -> PooledSpec:
    """ModernBERT as an embedder: norms before gated blocks, most layers with a window to both sides."""
    return PooledSpec(body=_modern_body(config), pooling="cls")


@architecture("ModernBertForSequenceClassification")
def modernbert_classifier(config: Mapping[str, Any]) -> PooledSpec:
    """ModernBERT with a classifier over the first token or the mean."""
    pooling = ConfigReader(config).string("classifier_pooling", "cls")
    if pooling == "mean":
        return _modern_head(config, "mean")
    if pooling != "cls":
        raise UnsupportedConfig("classifier_pooling", f"{pooling!r} is neither 'cls' nor 'mean'")
    return _modern_head(config, "cls")


@architecture("ModernBertForTokenClassification")
def modernbert_tokens(config: Mapping[str, Any]) -> PooledSpec:
    """ModernBERT with a classifier over each token."""
    return _modern_head(config, "token")


# NomicBERT

_NOMIC_NAMES = Names(
    top={
        "nomic_bert.embeddings.word_embeddings": "embedding",
        "nomic_bert.embeddings.token_type_embeddings": "token_types",
        "nomic_bert.emb_ln": "embedding_norm",
        "nomic_bert.pooler.dense": "pooler",
        "classifier": "classifier",
    },
    layer="nomic_bert.encoder.layers.{i}",
    inside={
        "attn.Wqkv": rows("attention.query", "attention.key", "attention.value"),
        "attn.out_proj": "attention.output",
        "norm1": "attention.after_norm",
        "mlp.fc11": "mlp.up",
        "mlp.fc12": "mlp.gate",
        "mlp.fc2": "mlp.down",
        "norm2": "mlp.after_norm",
    },
    optional_prefix="nomic_bert.",
    harmless=(r"cls\..*", r"(nomic_bert\.)?pooler\..*"),
)
_NOMIC_FIELDS = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
    "rope_theta": "rotary_emb_base",
    "partial_rotary_factor": "rotary_emb_fraction",
}


def _nomic_body(config: Mapping[str, Any]) -> DecoderSpec:
    config = {"layer_norm_eps": 1e-12, "hidden_act": "silu", **renamed(config, _NOMIC_FIELDS)}
    reader, norm = ConfigReader(config), layer_norm(config)
    for field in (
        "prenorm",
        "parallel_block",
        "use_rms_norm",
        "rotary_emb_interleaved",
        "rotary_emb_scale_base",
        "rotary_scaling_factor",
        "qkv_proj_bias",
        "mlp_fc1_bias",
        "mlp_fc2_bias",
        "num_experts",
    ):
        reader.refuse(field, "is not supported for this architecture")
    if config.get("activation_function", "swiglu") != "swiglu":
        raise UnsupportedConfig("activation_function", f"{config['activation_function']!r} is not 'swiglu'")
    size = head_size_of(config)
    mixer = both_sides(config, bias=False, rope=_rope(config, 1000.0, size), head_size=size)
    layer = post_norm(mixer, gated_mlp(config), norm)
    return decoder(
        {**config, "tie_word_embeddings": True},
        [layer] * reader.positive_int("num_hidden_layers"),
        final_norm=None,
        names=_NOMIC_NAMES,
        embedding=text_embedding(config, norm, types=2),
    )


@architecture("NomicBertModel", "NomicBertForMaskedLM")
def nomic_bert(config: Mapping[str, Any]) -> PooledSpec:
    """NomicBERT as an embedder: BERT with rope, gated blocks and no biases in the layers."""
    return PooledSpec(body=_nomic_body(config), pooling="mean")


@architecture("NomicBertForSequenceClassification")
def nomic_bert_classifier(config: Mapping[str, Any]) -> PooledSpec:
    """NomicBERT with a classifier over the first token."""
    return text_classifier(_nomic_body(config), config, dense="pooler")


@architecture("NomicBertForTokenClassification")
def nomic_bert_tokens(config: Mapping[str, Any]) -> PooledSpec:
    """NomicBERT with a classifier over each token."""
    return token_classifier(_nomic_body(config), config)


# GTE


def _gte_names(root: str) -> Names:
    return Names(
        top={
            f"{root}embeddings.word_embeddings": "embedding",
            f"{root}embeddings.token_type_embeddings": "token_types",
            f"{root}embeddings.LayerNorm": "embedding_norm",
            f"{root}pooler.dense": "pooler",
            "classifier": "classifier",
        },
        layer=f"{root}encoder.layer.{{i}}",
        inside={
            "attention.qkv_proj": rows("attention.query", "attention.key", "attention.value"),
            "attention.o_proj": "attention.output",
            "attn_ln": "attention.after_norm",
            "mlp.up_gate_proj": rows("mlp.up", "mlp.gate"),
            "mlp.down_proj": "mlp.down",
            "mlp_ln": "mlp.after_norm",
        },
        optional_prefix=root,
        harmless=(r"lm_head\..*", rf"({root[:-1]}\.)?pooler\..*", r"(.*\.)?embeddings\.position_ids"),
    )


def _gte_rope(config: Mapping[str, Any], head_size: int, *, is_hub_code: bool) -> Rope:
    section = ConfigReader(config).section("rope_scaling")
    if section is None or section.string("type", "") != "ntk":
        return _rope(config, 10000.0 if is_hub_code else 160000.0, head_size)
    section.refuse("mixed_b", "only fixed scaling is supported")
    factor = section.positive_float("factor")
    rope = _rope({**config, "rope_scaling": None}, 10000.0, head_size)
    divisors = FrequencyFactors(factors=(factor ** (2 / head_size),) * (head_size // 2))
    return replace(rope, theta=rope.theta * factor, scaling=divisors)


def _gte_body(config: Mapping[str, Any]) -> DecoderSpec:
    is_hub_code = str(config.get("model_type")) == "new"
    config = {"layer_norm_eps": 1e-12, "hidden_act": "gelu", **config}
    reader, norm, size = ConfigReader(config), layer_norm(config), head_size_of(config)
    for field, wanted in (("position_embedding_type", "rope"), ("layer_norm_type", "layer_norm")):
        if config.get(field, wanted) != wanted:
            raise UnsupportedConfig(field, f"{config[field]!r} is not {wanted!r}")
    reader.refuse("logn_attention_scale", "is not supported")
    if config.get("pack_qkv", True) is not True:
        raise UnsupportedConfig("pack_qkv", "must be true")
    rope = _gte_rope(config, size, is_hub_code=is_hub_code)
    mlp = replace(gated_mlp(config), down_bias=True)
    return decoder(
        {**config, "tie_word_embeddings": True},
        [post_norm(both_sides(config, rope=rope), mlp, norm)] * reader.positive_int("num_hidden_layers"),
        final_norm=None,
        names=_gte_names("new." if is_hub_code else "gte."),
        embedding=text_embedding(config, norm, types=1),
    )


@architecture("GteModel", "GteForMaskedLM", "NewModel", "NewForMaskedLM")
def gte(config: Mapping[str, Any]) -> PooledSpec:
    """GTE as an embedder: BERT with rope and gated blocks."""
    return PooledSpec(body=_gte_body(config), pooling="cls")


@architecture("GteForSequenceClassification", "NewForSequenceClassification")
def gte_classifier(config: Mapping[str, Any]) -> PooledSpec:
    """GTE with a classifier over the first token (its rerankers)."""
    return text_classifier(_gte_body(config), config, dense="pooler")


@architecture("GteForTokenClassification", "NewForTokenClassification")
def gte_tokens(config: Mapping[str, Any]) -> PooledSpec:
    """GTE with a classifier over each token."""
    return token_classifier(_gte_body(config), config)


# Jina embeddings v3

_JINA_NAMES = Names(
    top={
        "roberta.embeddings.word_embeddings": "embedding",
        "roberta.embeddings.token_type_embeddings": "token_types",
        "roberta.emb_ln": "embedding_norm",
        "classifier.dense": "dense",
        "classifier.out_proj": "classifier",
        "classifier": "classifier",
    },
    layer="roberta.encoder.layers.{i}",
    inside={
        "mixer.Wqkv": rows("attention.query", "attention.key", "attention.value"),
        "mixer.out_proj": "attention.output",
        "norm1": "attention.after_norm",
        "mlp.fc1": "mlp.up",
        "mlp.fc2": "mlp.down",
        "norm2": "mlp.after_norm",
    },
    optional_prefix="roberta.",
    harmless=(r"lm_head\..*", r"(roberta\.)?pooler\..*"),
)


def _jina_body(config: Mapping[str, Any]) -> DecoderSpec:
    config = {"layer_norm_eps": 1e-5, **config}
    reader, norm, size = ConfigReader(config), layer_norm(config), head_size_of(config)
    reader.refuse("lora_adaptations", "adapters inside the checkpoint are not supported")
    rope = _rope(config, 20000.0, size)
    return decoder(
        {**config, "tie_word_embeddings": True},
        [post_norm(both_sides(config, rope=rope), plain_mlp(config), norm)]
        * reader.positive_int("num_hidden_layers"),
        final_norm=None,
        names=_JINA_NAMES,
        embedding=text_embedding(config, norm, types=1),
    )


@architecture("JinaEmbeddingsV3Model", "JinaEmbeddingsV3ForMaskedLM")
def jina(config: Mapping[str, Any]) -> PooledSpec:
    """Jina embeddings v3: XLM-RoBERTa with rope."""
    return PooledSpec(body=_jina_body(config), pooling="mean")


@architecture("JinaEmbeddingsV3ForSequenceClassification")
def jina_classifier(config: Mapping[str, Any]) -> PooledSpec:
    """Jina embeddings v3 with a classifier over the first token."""
    return text_classifier(_jina_body(config), config)


@architecture("JinaEmbeddingsV3ForTokenClassification")
def jina_tokens(config: Mapping[str, Any]) -> PooledSpec:
    """Jina embeddings v3 with a classifier over each token."""
    return token_classifier(_jina_body(config), config)


# EuroBERT

_EURO_NAMES = LLAMA_NAMES.but(top={"dense": "dense", "classifier": "classifier"}, harmless=(r"lm_head\..*",))


def _euro_body(config: Mapping[str, Any]) -> DecoderSpec:
    reader, norm = ConfigReader(config), rms_norm(config, default=1e-5)
    bias = reader.boolean("attention_bias", False)
    mixer = replace(attention(config, qkv_bias=bias, output_bias=bias, theta=250000.0), causal=False)
    layer = pre_norm(mixer, gated_mlp(config, bias=reader.boolean("mlp_bias", False)), norm)
    return decoder(
        {**config, "tie_word_embeddings": True},
        [layer] * reader.positive_int("num_hidden_layers"),
        final_norm=norm,
        names=_EURO_NAMES,
    )


@architecture("EuroBertModel", "EuroBertForMaskedLM")
def eurobert(config: Mapping[str, Any]) -> PooledSpec:
    """EuroBERT as an embedder: Llama that looks to both sides."""
    return PooledSpec(body=_euro_body(config), pooling="cls")


@architecture("EuroBertForSequenceClassification")
def eurobert_classifier(config: Mapping[str, Any]) -> PooledSpec:
    """EuroBERT with a classifier over the first token, the mean, or each token and then their mean."""
    kind = ConfigReader(config).string("classifier_pooling", "late")
    if kind not in ("bos", "mean", "late"):
        raise UnsupportedConfig("classifier_pooling", f"{kind!r} is none of bos, mean and late")
    pooling: PoolingKind = "cls" if kind == "bos" else "mean"
    spec = text_classifier(_euro_body(config), config, activation="gelu", pooling=pooling)
    return replace(spec, pools_last=kind == "late")


@architecture("EuroBertForTokenClassification")
def eurobert_tokens(config: Mapping[str, Any]) -> PooledSpec:
    """EuroBERT with a classifier over each token."""
    return token_classifier(_euro_body(config), config)
