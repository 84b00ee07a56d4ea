"""Serving models that have no native spec with transformers' modules; knows nothing about requests."""

from llm_models.fallback.load import load_fallback
from llm_models.fallback.models import FallbackModel
from llm_models.fallback.verdict import Verdict, fallback_verdict

__all__ = ["FallbackModel", "Verdict", "fallback_verdict", "load_fallback"]
