"""The pure heart: what a journal means and what follows from it. No clock, no I/O, no randomness, no coroutines."""
