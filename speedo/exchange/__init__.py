"""The vectors that are sent: the flat vector and its layout, codecs, checked transfer."""
