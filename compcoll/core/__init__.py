"""The ground: the table of compiled codecs, element types, exceptions."""
