"""What `shoal doctor` finds out about a user's environment and network before a run, and what it advises."""
