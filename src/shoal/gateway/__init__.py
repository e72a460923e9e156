"""The door for everything outside: one protocol for simulators that learn, programs that ask for actions, and their
server. Nothing here knows what is behind the door."""
