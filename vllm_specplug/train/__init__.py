"""Training of the heads and drafters that proposers use."""
