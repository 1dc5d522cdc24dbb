"""A net in integers of 8 bits: which of its layers, and the quantised file."""
