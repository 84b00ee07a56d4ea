"""Sends mutated requests to every route of a server and judges what comes back."""
