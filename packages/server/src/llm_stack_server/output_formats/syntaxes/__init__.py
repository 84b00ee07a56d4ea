"""How models write tool calls: one reading function a syntax."""
