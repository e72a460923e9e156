"""The `shoal` command: what is typed, and a module for each command."""
