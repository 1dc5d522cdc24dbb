"""The store in Redis: client, private server and its keeper, users, TLS."""
