"""For callers: starting runs, asking about them, waiting for their results. Executes nothing."""
