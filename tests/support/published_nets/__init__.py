"""Published nets, written as prototxt from their papers and the authors' tables, at their published sizes."""
