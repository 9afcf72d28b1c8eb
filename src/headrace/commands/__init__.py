"""Anybody's processes under our supervision: readiness, progress, deadlines, logs."""
