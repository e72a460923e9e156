"""Updates per second of methods that learn from data, beside single files in CORL's style and d3rlpy."""
