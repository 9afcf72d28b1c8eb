"""What a run tells about itself: board, books, events, metrics."""
