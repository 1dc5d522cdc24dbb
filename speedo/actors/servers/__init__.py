"""Servers of the center as actors on the hosts, and the master's part of them."""
