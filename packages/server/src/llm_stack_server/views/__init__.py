"""Answer formats: each turns the one stream of choice deltas into chunks and into a whole answer."""
