"""Grammars that outputs follow: what is asked for, how it is compiled, and which tokens it allows."""

from llm_engine.grammar.backend import GrammarBackend, InvalidGrammar
from llm_engine.grammar.compiler import Grammar, GrammarCompiler, Matcher, fill_masks
from llm_engine.grammar.spec import GrammarSpec

__all__ = [
    "Grammar",
    "GrammarBackend",
    "GrammarCompiler",
    "GrammarSpec",
    "InvalidGrammar",
    "Matcher",
    "fill_masks",
]
