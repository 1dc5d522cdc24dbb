"""A run as actors of a Ray cluster that exists already, through Ray's public interface alone."""
