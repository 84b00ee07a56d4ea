"""References in torch, float32 inside: what each op means, the fallback and the yardstick of the tests."""
