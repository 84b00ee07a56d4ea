"""Grammars that outputs follow: what is asked for, how it is compiled, and which tokens it allows."""

from llm_engine.grammar.compiler import Grammar, GrammarCompiler, InvalidGrammar, Matcher
from llm_engine.grammar.spec import GrammarSpec

__all__ = ["Grammar", "GrammarCompiler", "GrammarSpec", "InvalidGrammar", "Matcher"]
