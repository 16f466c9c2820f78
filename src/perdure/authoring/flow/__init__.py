"""Flows: programs that are data, read from YAML or JSON and compiled to a plan of the dataflow core."""
