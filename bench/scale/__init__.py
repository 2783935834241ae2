"""How nodes that compute the allocation scale: the numbers and the picture of `docs/scale.md`."""
