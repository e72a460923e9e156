"""Calls between nodes: messages, lanes, meeting by address, and proof of who calls."""
