"""Studies of runs: examination, comparison, planning, scoring, simulation, contracts of strategies."""
