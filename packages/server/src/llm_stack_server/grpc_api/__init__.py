"""The engine over gRPC: messages, calls, health, the server. Another view of what the HTTP routes serve."""
