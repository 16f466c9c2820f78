"""Settings from a file and from the environment: where they are looked for, what they may say, in which line not."""
