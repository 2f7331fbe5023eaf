"""An assistant's desk in plain English: look something up, then act on it."""
