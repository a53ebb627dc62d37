"""Visit every reachable state of a small pool: of the spec on bit planes, of the model by its own moves."""
