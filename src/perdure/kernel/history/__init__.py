"""What is done with a journal that exists: fork, retry, rewind, compare, carry."""
