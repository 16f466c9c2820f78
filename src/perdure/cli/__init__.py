"""The command line: `perdure`. Talks to stores through the client, and to people in plain words."""
