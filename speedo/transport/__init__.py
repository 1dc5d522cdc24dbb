"""Messages between processes of one machine, without Ray."""
