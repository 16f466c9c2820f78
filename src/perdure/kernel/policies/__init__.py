"""What callers may choose for a run, a step or a queue, checked and decided."""
