"""Where flushes go: any number of outputs at once."""
