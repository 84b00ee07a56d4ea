"""Owns what front ends may ask about models without loading one; the answers are those of `llm_models`."""

from llm_models.catalog import CatalogEntry, catalog
from llm_models.check import RANKS, CheckpointReport, check_checkpoint
from llm_models.errors import ModelError

__all__ = ["RANKS", "CatalogEntry", "CheckpointReport", "ModelError", "catalog", "check_checkpoint"]
