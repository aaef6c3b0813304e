"""Writers of trace formats, one file each."""
