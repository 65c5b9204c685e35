"""Why a cut ended where it did: one of these on every ubatch, for people and for `--json`."""

FULL = "ubatch full"  # another row, or another round of rows, would exceed n_ubatch
BATCH_ENDED = "batch ended"  # no rows are left
SEQUENCE_ENDED = "a sequence ran out"  # equal counts end with the shortest; the seq cut ends with its set
NOT_CONSECUTIVE = "ids not consecutive"  # the next set's sequence id does not follow the last one taken
OVERLAP = "sets overlap"  # the next set shares a sequence with one taken
WAITS = "a row waits"  # the next row of a set comes after another set's row that shares a sequence
SPAN = "span kept"  # the next rows see each other in both directions, and do not all fit
TAIL = "tail kept"  # the last rows of a set would have been torn apart
