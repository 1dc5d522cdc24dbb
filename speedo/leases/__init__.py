"""Which records of a script's data set a worker trains: ranges, requests and answers, the order of an epoch."""
