"""What attention of one ubatch reads: lines of sequences, tiles of rows."""
