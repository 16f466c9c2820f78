"""Code that no longer fits a journal: what differs, where, and what to do."""
