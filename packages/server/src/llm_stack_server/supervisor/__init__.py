"""Several front ends of one engine: their processes, and what they must know of each other."""
