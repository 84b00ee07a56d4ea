"""Looks at a machine and a model before anything is served. Knows nothing of terminals or of HTTP."""
