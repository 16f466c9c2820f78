"""Tools to test with: the contract of a backend, and simulated worlds to run workflows in."""
