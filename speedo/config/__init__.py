"""What a user may say: options, defaults, checks, written forms."""
