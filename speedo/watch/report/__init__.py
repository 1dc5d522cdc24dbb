"""From the directories of runs to figures, and from these to one page, a picture and a table."""
