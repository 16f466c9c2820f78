"""The Redis store: everything in one server's memory, written by scripts that compare and swap."""
