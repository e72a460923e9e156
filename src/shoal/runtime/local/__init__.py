"""The local runtime: a process per node, arrays through shared memory, nothing left behind."""
