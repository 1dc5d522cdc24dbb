"""The store in Redis: client, private server and its keeper process, users, TLS."""
