"""Ways to write programs. They know the kernel, and nothing of engines and stores."""
