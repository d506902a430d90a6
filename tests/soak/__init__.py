"""The soak test: random programs for as long as one likes. `make soak` runs it."""
