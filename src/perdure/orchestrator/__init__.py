"""Many runs: who owns them, when they wake, how they are taken over."""
