"""A directory of JSON lines that a person can read: for prototypes."""
