"""What plan-makers write and compiled code reads: aligned arrays, words of records and of tiles."""
