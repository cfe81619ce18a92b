"""The command line: the only room that knows argparse, rich and the terminal."""
