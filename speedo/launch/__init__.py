"""`speedo launch`: starts master, servers and workers on the hosts of a cluster over ssh, and ends them with it."""
