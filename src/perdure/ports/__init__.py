"""What the engine needs from the world, as small protocols. Every backend passes the same conformance suite."""
