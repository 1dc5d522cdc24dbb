"""What travels: the flat vector and its layout, codecs, checked transfer."""
