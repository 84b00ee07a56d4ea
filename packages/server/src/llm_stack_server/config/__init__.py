"""Options from one source: the dataclasses of server and engine, and a file in YAML."""
