"""The Ray runtime: a cluster to place nodes on, and the run that watches them; the only folder that imports ray."""
