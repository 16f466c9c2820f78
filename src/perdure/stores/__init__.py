"""Backends: each one a bundle of the ports, none known to the engine by name."""
