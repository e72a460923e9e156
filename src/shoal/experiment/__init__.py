"""Experiments: run directory, stop rules, live view, summary, plots, and the options of the command line."""
