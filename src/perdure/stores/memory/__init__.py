"""The memory store, for tests: the same promises as the others for as long as the process lives."""
