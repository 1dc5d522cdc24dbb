"""`speedo watch`: a run, live, in the terminal or as a page; from its log, and from its socket while it has one."""
