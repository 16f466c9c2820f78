"""The options that callers choose for a run, a step or a queue: checked here, and decided by."""
