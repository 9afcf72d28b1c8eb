"""What every layer may use: errors, configuration, clock, seeds and the layout of spaces."""
