"""K and V in blocks of 16 cells: where they lie, how they are written, saved and found."""
