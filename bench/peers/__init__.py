"""Other systems doing the same work, each from its own environment. Nothing here imports perdure."""
