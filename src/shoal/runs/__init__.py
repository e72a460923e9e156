"""Run directories and their records: what was asked for, what is in them, lists of them."""
