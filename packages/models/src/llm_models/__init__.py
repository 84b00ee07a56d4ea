"""Decoders as declarative specs, with safetensors and GGUF loading; knows nothing about requests."""

from llm_models.architectures import Architecture, architecture
from llm_models.blocks.step import Packed
from llm_models.caches import CacheSpec, CrossCacheSpec, KVCacheSpec, LatentCacheSpec, StateCacheSpec
from llm_models.config import checkpoint_dtype
from llm_models.decoder import Decoder
from llm_models.encoder_decoder import EncoderDecoder
from llm_models.errors import (
    ConfigError,
    CorruptFile,
    DuplicateTensor,
    GatedModel,
    HubUnreachable,
    MissingShard,
    MissingTensor,
    ModelError,
    ModelNotCached,
    ModelNotFound,
    PickleRefused,
    ShardingError,
    UnexpectedTensor,
    UnknownArchitecture,
    UnknownQuantization,
    UnsupportedConfig,
    WeightError,
    WrongDtype,
    WrongScale,
    WrongShape,
)
from llm_models.files import ModelFiles, resolve
from llm_models.load import (
    is_pooling,
    load_encoder_decoder,
    load_model,
    load_pooling_model,
    pooled_spec_of,
    pooling_over,
)
from llm_models.pooling import PooledSpec, PoolingModel
from llm_models.registry import (
    encoder_decoder_spec_for,
    is_native,
    known_architectures,
    pooled_spec_for,
    spec_for,
)
from llm_models.sentence_transformers import SentenceModules, read_sentence_modules
from llm_models.spec import DecoderSpec, EncoderDecoderSpec

__all__ = [
    "Architecture",
    "CacheSpec",
    "ConfigError",
    "CorruptFile",
    "CrossCacheSpec",
    "Decoder",
    "DecoderSpec",
    "DuplicateTensor",
    "EncoderDecoder",
    "EncoderDecoderSpec",
    "GatedModel",
    "HubUnreachable",
    "KVCacheSpec",
    "LatentCacheSpec",
    "MissingShard",
    "MissingTensor",
    "ModelError",
    "ModelFiles",
    "ModelNotCached",
    "ModelNotFound",
    "Packed",
    "PickleRefused",
    "PooledSpec",
    "PoolingModel",
    "SentenceModules",
    "ShardingError",
    "StateCacheSpec",
    "UnexpectedTensor",
    "UnknownArchitecture",
    "UnknownQuantization",
    "UnsupportedConfig",
    "WeightError",
    "WrongDtype",
    "WrongScale",
    "WrongShape",
    "architecture",
    "checkpoint_dtype",
    "encoder_decoder_spec_for",
    "is_native",
    "is_pooling",
    "known_architectures",
    "load_encoder_decoder",
    "load_model",
    "load_pooling_model",
    "pooled_spec_for",
    "pooled_spec_of",
    "pooling_over",
    "read_sentence_modules",
    "resolve",
    "spec_for",
]
