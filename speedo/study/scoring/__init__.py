"""Scores models by the test nets of a solver, in several processes, as plain Caffe would in one."""
