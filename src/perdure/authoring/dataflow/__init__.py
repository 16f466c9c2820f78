"""The dataflow core, on which graphs and flows are built: a frozen plan, and a state machine that executes it."""
