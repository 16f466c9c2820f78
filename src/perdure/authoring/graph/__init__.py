"""Graphs: nodes that are wired by the names of the values they take."""
