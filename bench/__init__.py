"""Benchmarks of perdure: the engine, the limit that Python and the disk set, and peers. Not part of the package."""
