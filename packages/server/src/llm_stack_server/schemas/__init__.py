"""Request bodies: their fields and types. Ranges that concern the engine are checked by the engine."""
