"""Looking at training from outside: the doctor of our own runs, and the watch over logs of anybody's."""
