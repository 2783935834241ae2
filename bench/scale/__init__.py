"""How nodes that compute the allocation scale: the tables and the figure of `docs/scale.md`."""
