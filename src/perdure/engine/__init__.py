"""One run at a time: advancing it, calling its steps, writing what happened."""
