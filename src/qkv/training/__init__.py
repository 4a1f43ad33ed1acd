"""Learning: backward passes, an optimiser, batches and the loop around them."""
