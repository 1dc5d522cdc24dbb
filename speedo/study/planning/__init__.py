"""Predicts the speed of a run: from a calibration and a site, with a simulator in which every step takes time.

`calibration` is the record of what was measured or assumed; `calibrate_by_measuring` and `calibrate_from_run` make
one. `site` describes the machines and links, `timed_cluster` simulates them, `predict` runs the simulation.
"""
