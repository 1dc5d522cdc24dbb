"""All that bends Ray: its node, its ports, its session."""
