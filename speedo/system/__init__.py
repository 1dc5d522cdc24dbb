"""The operating system: files that users name, private folders, processes in the background."""
