"""`shoal plan`: what a target rate needs, from costs measured here and a simulation of the program on many machines."""
