"""What is told of each request after it: access log, traces, outcomes. Knows nothing of the routes."""
