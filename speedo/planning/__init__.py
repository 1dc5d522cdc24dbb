"""How fast a run would be, before there is one: a calibration, a site, and the simulator with a price on everything.

`calibration` is the record of what was measured or assumed, `measure` and `from_run` make one, `site` says where a run
would take place, `timed` is the cluster, `prediction` runs it.
"""
