"""The Model Context Protocol: the engine's tools for MCP hosts, which are the HTTP routes in another form."""
