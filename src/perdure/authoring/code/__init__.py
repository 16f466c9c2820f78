"""Workflows in plain asyncio Python, driven by a deterministic event loop."""
